-- Where do calls get lost, and why?
-- Every reason for which a text, a paragraph, a position, a sample or a call went no further, the most
-- frequent first in each stage; `counted` says which of these a count is of. Placebos are no calls. A call
-- without a result is lost when it is executed, not once more when nothing of it can be scored.
create function where_do_calls_get_lost(run text default '')
    returns table (
        tool text, stage text, reason text, count bigint, counted text)
    language sql stable
as $$
    with losses as (
        select tool, step, stage, reason, count
        from yield_by_stage
        where run_id = run_or_newest(run) and is_loss and stage <> 'placebo' and count > 0
    )
    select tool, stage, reason, count,
           case
               when stage = 'filter' then 'paragraphs'
               when reason = 'texts_without_position' then 'texts'
               when reason like 'position%' then 'positions'
               when stage = 'sample' then 'samples'
               else 'calls'
           end as counted
    from losses
    where not (stage = 'score' and exists (
        select 1 from losses executed
        where executed.stage = 'execute' and executed.tool = losses.tool and executed.reason = losses.reason))
    order by tool, step, count desc, reason
$$;
comment on function where_do_calls_get_lost is
    'Where do calls get lost, and why? About this run; an empty name is the newest run that ended well.';
