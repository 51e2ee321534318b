-- Where do calls get lost, and why?
-- Every reason for which a paragraph, a sample or a call went no further, the most frequent first in each stage. Placebos are no calls.
create function where_do_calls_get_lost(run text default '')
    returns table (
        tool text, stage text, reason text, count bigint)
    language sql stable
as $$
    select tool, stage, reason, count
    from yield_by_stage
    where run_id = run_or_newest(run)
      and is_loss
      and stage <> 'placebo'
      and count > 0
    order by tool, step, count desc, reason
$$;
comment on function where_do_calls_get_lost is 'Where do calls get lost, and why? About this run; an empty name is the newest run that ended well.';
