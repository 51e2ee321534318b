-- What would be kept if each second of a call had to save something?
-- The run's rule with nats_per_second from 0 to 5: a call saves at least so many nats for each second that a call of its tool takes. The
-- seconds are those that the run was started with, or else the median of the tool's executions with a result.
create function what_is_kept_if_seconds_cost(run text default '')
    returns table (
        tool text, seconds_of_a_call double precision, nats_per_second double precision, threshold double precision,
        calls bigint, texts bigint)
    language sql stable
as $$
    with costs as materialized (
        select t.run_id, t.tool, t.keep_threshold,
               coalesce(
                   (select cost.seconds from call_costs cost where cost.run_id = t.run_id and cost.tool = t.tool),
                   (select percentile_cont(0.5) within group (order by answer.seconds::double precision)
                    from call_results answer
                    where answer.tool = t.tool and answer.tool_version = t.tool_version and answer.reason is null)) as seconds
        from run_tools t
        where t.run_id = run_or_newest(run)
    ),
    kept as materialized (  -- what costs raise is the threshold: nothing else is kept
        select tool, document_id, call_id, loss_reduction from kept_calls_of(run)
    )
    select c.tool,
           c.seconds as seconds_of_a_call,
           asked.nats_per_second,
           greatest(c.keep_threshold, asked.nats_per_second * c.seconds) as threshold,
           count(k.call_id) as calls,
           count(distinct k.document_id) as texts
    from costs c
    cross join unnest(array[0, 0.1, 0.5, 1, 2, 5]) as asked (nats_per_second)
    left join kept k on k.tool = c.tool and k.loss_reduction >= asked.nats_per_second * c.seconds
    where c.seconds is not null
    group by c.tool, c.keep_threshold, c.seconds, asked.nats_per_second
    order by c.tool, asked.nats_per_second
$$;
comment on function what_is_kept_if_seconds_cost is 'What would be kept if each second of a call had to save something? About this run; an empty name is the newest run that ended well.';
