-- DuckDB's form of the functions that the views and questions call; sql/functions has Postgres'.

create macro is_kept(reason, gain, keep_threshold) as
    reason is null and gain >= keep_threshold and gain < cast('Infinity' as double);

create macro call_gain(gain_bound, probability_with, placebo_probability) as
    case
        when probability_with is null then gain_bound
        when placebo_probability is not null
            then least(gain_bound, ln(probability_with / placebo_probability))
    end;

create macro run_keeps(reason, gain_bound, keep_threshold, probability_with, placebo_probability) as
    is_kept(reason, gain_bound, keep_threshold)
    and (probability_with is null or coalesce(ln(probability_with / placebo_probability) >= keep_threshold,
        false));

create macro call_outcome(is_scored, not_scored_for, gain_bound, keep_threshold, probability_with,
    placebo_probability) as
    case
        when not is_scored then 'sampled'
        when not_scored_for = 'pruned_below' then 'pruned'
        when not_scored_for = 'loss_not_finite' then 'not_finite'
        when not_scored_for is not null then 'no_result'
        when is_kept(null, gain_bound, keep_threshold) is not true then 'below_threshold'
        when not run_keeps(null, gain_bound, keep_threshold, probability_with, placebo_probability)
            then 'like_a_placebo'
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
        else error('run ' || named_run(run)
            || ': expected a run of the history, found none. `toolformer-ops history write` writes finished runs.')
    end;
