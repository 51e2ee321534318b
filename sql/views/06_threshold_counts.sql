create view threshold_counts as
select counted.*, rate.placebos, rate.placebos_scored, rate.false_discovery_rate, rate.rate_low,
    rate.rate_high
from (
    select rt.run_id, rt.tool, stored.threshold, stored.threshold = rt.keep_threshold as is_keep_threshold,
           stored.calls, stored.texts, stored.releasable_calls
    from finished_run_thresholds stored
    join stored_runs using (run_id)
    join run_tools rt using (run_id, tool)
    union all
    select rt.run_id, rt.tool, counted.threshold, counted.threshold = rt.keep_threshold, counted.calls,
        counted.texts, counted.releasable_calls
    from run_tools rt
    join annotation_runs run using (run_id)
    cross join lateral counted_thresholds(rt, run, null) counted
    where not exists (select from stored_runs stored where stored.run_id = rt.run_id)
) counted
left join placebo_rates rate using (run_id, tool, threshold);
comment on view threshold_counts is
    'The paper''s Table 2: how many calls, in how many texts, the run''s keep rule keeps at a threshold, '
    'for each tool of each run at 0.5, 1.0 and 2.0 nats (by the keep rule probability at 0.1 and 0.5) and '
    'at the tool''s own threshold; and how many of them it would keep by chance. Every count is exact; a '
    'threshold below the run''s prune_below has no row. The rate is counted by the tool''s check, and null '
    'before it and without placebos.';
comment on column threshold_counts.is_keep_threshold is
    'Whether it is the tool''s own threshold in this run.';
comment on column threshold_counts.calls is 'Number of scored calls with gain >= threshold.';
comment on column threshold_counts.placebos_scored is
    'Sampled calls that have a placebo: a rate on fewer than 30 says too little, and reports do not show '
    'it.';
comment on column threshold_counts.false_discovery_rate is
    'Placebos expected among all calls with a result, over calls: the share of the kept calls that the rule '
    'would keep with any result; at most 1.';
call inherit_comments('threshold_counts', 'run_tools', 'finished_run_thresholds', 'placebo_rates');
