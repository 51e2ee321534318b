create view kept_calls as
select *, not input_only_after as releasable
from scored_calls
where is_kept(null, gain, keep_threshold);
comment on view kept_calls is
    'The run''s keep rule: the scored calls with gain >= keep_threshold (Toolformer, section 2, where the '
    'gain is the loss reduction). A release takes those that are releasable.';
comment on column kept_calls.releasable is
    'Whether a release may take it: its input does not occur only after the call.';
call inherit_comments('kept_calls', 'scored_calls');

create function kept_calls_of(run text default '')
    returns setof kept_calls
    language sql stable parallel safe
begin atomic
    select * from kept_calls where run_id = run_or_newest(run);
end;
comment on function kept_calls_of is 'The view kept_calls about one run, as scored_calls_of.';
