-- What would be kept if each second of a call had to save something?
-- The run's rule with nats_per_second from 0 to 5: a call saves at least so many nats for each second that a call of its tool takes. The
-- seconds are those that the run was started with, or else the median of the tool's executions with a result.
create function what_is_kept_if_seconds_cost(run text default '')
    returns table (
        tool text, seconds_of_a_call double precision, nats_per_second double precision, threshold double precision,
        calls bigint, texts bigint)
    language sql stable
as $$
    with seconds_of_tools as (
        select t.tool, t.keep_threshold,
               coalesce(
                   (select cost.seconds from call_costs cost where cost.run_id = t.run_id and cost.tool = t.tool),
                   (select percentile_cont(0.5) within group (order by answer.seconds::double precision)
                    from call_results answer
                    where answer.tool = t.tool and answer.tool_version = t.tool_version and answer.reason is null)) as seconds
        from run_tools t
        where t.run_id = run_or_newest(run)
    ),
    costs as materialized (
        select tool, keep_threshold, seconds,
               array(
                   select nats_per_second * seconds
                   from unnest(array[0, 0.1, 0.5, 1, 2, 5]::double precision[]) as asked (nats_per_second)
                   order by nats_per_second) as least_nats
        from seconds_of_tools
        where seconds is not null
    ),
    -- The kept calls of each text by the last of these numbers of nats that they save: what costs raise is the threshold, nothing else is kept.
    kept as materialized (
        select call.tool, call.document_uuid, width_bucket(call.loss_reduction, costs.least_nats) as step, count(*) as calls
        from kept_calls_of(run) call
        join costs on costs.tool = call.tool
        group by call.tool, call.document_uuid, width_bucket(call.loss_reduction, costs.least_nats)
    ),
    counts as (
        select tool, step, sum(calls) as calls, 0 as texts from kept group by tool, step
        union all
        select tool, step, 0, count(*)
        from (select tool, max(step) as step from kept group by tool, document_uuid) best
        group by tool, step
    )
    select c.tool,
           c.seconds as seconds_of_a_call,
           asked.nats_per_second,
           greatest(c.keep_threshold, c.least_nats[asked.step]) as threshold,
           cast(coalesce(sum(counts.calls), 0) as bigint) as calls,
           cast(coalesce(sum(counts.texts), 0) as bigint) as texts
    from costs c
    cross join unnest(array[0, 0.1, 0.5, 1, 2, 5]::double precision[]) with ordinality as asked (nats_per_second, step)
    left join counts on counts.tool = c.tool and counts.step >= asked.step
    group by c.tool, c.keep_threshold, c.seconds, c.least_nats, asked.nats_per_second, asked.step
    order by c.tool, asked.nats_per_second
$$;
comment on function what_is_kept_if_seconds_cost is 'What would be kept if each second of a call had to save something? About this run; an empty name is the newest run that ended well.';
