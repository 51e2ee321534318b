-- What would another threshold keep?
-- A run at thresholds from 0 to 2 nats in steps of half a nat, and at a quarter; needs no GPU. Below the run's prune_below not all calls
-- were computed: `calls` are those that are known, and a run with a lower prune_below may keep at most `may_add_calls` more, and calls at
-- `may_add_positions` where none was sampled.
create function what_would_another_threshold_keep(run text default '')
    returns table (
        tool text, threshold double precision, is_keep_threshold boolean, calls bigint, texts bigint,
        may_add_calls bigint, may_add_positions bigint)
    language sql stable
as $$
    with thresholds as materialized (
        select t.tool, t.keep_threshold, t.tau_information, threshold,
               undecided.calls as may_add_calls, undecided.positions as may_add_positions
        from run_tools t
        cross join unnest(array[0, 0.25, 0.5, 1, 1.5, 2]::double precision[]) as threshold
        cross join lateral undecided_at(t.run_id, t.tool, threshold) undecided
        where t.run_id = run_or_newest(run)
    ),
    reached as materialized (
        select tool, document_id, call_id, loss_reduction, case when tau_information is not null then information end as information
        from scored_calls_of(run)
        where is_kept(null, loss_reduction, 0)
    )
    select a.tool,
           a.threshold,
           a.threshold = a.keep_threshold as is_keep_threshold,
           count(k.call_id) as calls,
           count(distinct k.document_id) as texts,
           a.may_add_calls,
           a.may_add_positions
    from thresholds a
    left join reached k
        on k.tool = a.tool and k.loss_reduction >= a.threshold and (a.tau_information is null or k.information >= a.tau_information)
    group by a.tool, a.threshold, a.keep_threshold, a.may_add_calls, a.may_add_positions
    order by a.tool, a.threshold
$$;
comment on function what_would_another_threshold_keep is 'What would another threshold keep? About this run; an empty name is the newest run that ended well.';
