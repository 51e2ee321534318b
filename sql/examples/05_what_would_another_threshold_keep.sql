-- What would another threshold keep?
-- A run at the threshold `at_least`, nats. Without one by the rule paper at thresholds from 0 to 2 nats in
-- steps of half a nat, and at a quarter; by the rule probability from 0 to 1 nat. Needs no GPU. Below the
-- run's prune_below not all calls were computed: `calls` are those that are known, and a run with a lower
-- prune_below may keep at most `may_add_calls` more, and calls at `may_add_positions` where none was sampled.
create function what_would_another_threshold_keep(run text default '', at_least double precision default null)
    returns table (
        tool text, threshold double precision, is_keep_threshold boolean, calls bigint, texts bigint,
        may_add_calls bigint, may_add_positions bigint)
    language sql stable
as $$
    with asked as materialized (
        select t.tool, t.keep_threshold, cast(case
                   when at_least is not null then array[at_least]
                   when t.keep_rule = 'paper' then array[0, 0.25, 0.5, 1, 1.5, 2]
                   else array[0, 0.1, 0.2, 0.3, 0.5, 1]
               end as double precision[]) as steps
        from run_tools t
        where t.run_id = run_or_newest(run)
    ),
    thresholds as materialized (
        select asked.tool, asked.keep_threshold, step, threshold,
               undecided.calls as may_add_calls, undecided.positions as may_add_positions
        from asked
        cross join unnest(asked.steps) with ordinality as single (threshold, step)
        cross join lateral undecided_at(run_or_newest(run), asked.tool, threshold) undecided
    ),
    -- The calls of each text by the last of the thresholds that they reach.
    reached as materialized (
        select tool, document_uuid, width_bucket(gain, asked.steps) as step, count(*) as calls
        from scored_calls_of(run)
        join asked using (tool)
        where is_kept(null, gain, 0)
        group by tool, document_uuid, step
    ),
    counts as (
        select tool, step, sum(calls) as calls, 0 as texts from reached group by tool, step
        union all
        select tool, step, 0, count(*)
        from (select tool, max(step) as step from reached group by tool, document_uuid) best
        group by tool, step
    )
    select a.tool,
           a.threshold,
           a.threshold = a.keep_threshold as is_keep_threshold,
           cast(coalesce(sum(counts.calls), 0) as bigint) as calls,
           cast(coalesce(sum(counts.texts), 0) as bigint) as texts,
           a.may_add_calls,
           a.may_add_positions
    from thresholds a
    left join counts on counts.tool = a.tool and counts.step >= a.step
    group by a.tool, a.threshold, a.keep_threshold, a.may_add_calls, a.may_add_positions
    order by a.tool, a.threshold
$$;
comment on function what_would_another_threshold_keep is
    'What would another threshold keep? About this run; an empty name is the newest run that ended well.';
