create view kept_calls as
select s.*, not s.input_only_after as releasable
from scored_calls s
where is_kept(null, s.loss_reduction, s.keep_threshold)  -- no scored call has a reason against it
  and (s.tau_information is null or s.information >= s.tau_information);
comment on view kept_calls is 'The run''s keep rule: the scored calls with loss_reduction >= keep_threshold (Toolformer, section 2), and with information >= tau_information if the run has such a bound. A release takes those that are releasable.';
comment on column kept_calls.releasable is 'Whether a release may take it: its input does not occur only after the call.';
call inherit_comments('kept_calls', 'scored_calls');
