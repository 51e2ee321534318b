-- DuckDB's form of the functions that the views and questions call; sql/functions has Postgres'.

create macro is_kept(reason, loss_reduction, keep_threshold) as
    reason is null and loss_reduction >= keep_threshold and loss_reduction < cast('Infinity' as double);

create macro run_keeps(reason, loss_reduction, keep_threshold, information, tau_information) as
    is_kept(reason, loss_reduction, keep_threshold)
    and (tau_information is null or coalesce(information >= tau_information, false));

create macro call_outcome(is_scored, not_scored_for, loss_reduction, keep_threshold, information, tau_information) as
    case
        when not is_scored then 'sampled'
        when not_scored_for = 'pruned_below' then 'pruned'
        when not_scored_for = 'loss_not_finite' then 'not_finite'
        when not_scored_for is not null then 'no_result'
        when is_kept(null, loss_reduction, keep_threshold) is not true then 'below_threshold'
        when not run_keeps(null, loss_reduction, keep_threshold, information, tau_information) then 'below_tau_information'
        else 'kept'
    end;

create macro named_run(run) as coalesce(nullif(run, ''), getvariable('run'), '');

create macro run_or_newest(run) as
    case
        when named_run(run) = '' then (
            select run_id
            from annotation_runs
            where state = 'success' and run_id in (select run_id from run_tools)
            order by finished_at desc, run_id
            limit 1
        )
        when named_run(run) in (select run_id from annotation_runs) then named_run(run)
        else error('run ' || named_run(run) || ': expected a run of the history, found none. `toolformer-ops history write` writes finished runs.')
    end;
