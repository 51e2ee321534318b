create view threshold_counts as
select stored.run_id, stored.tool, stored.threshold, stored.threshold = rt.keep_threshold as is_keep_threshold,
       stored.calls, stored.texts, stored.releasable_calls,
       rate.placebos, rate.placebos_scored, rate.false_discovery_rate, rate.rate_low, rate.rate_high
from finished_run_thresholds stored
join stored_runs using (run_id)
join run_tools rt using (run_id, tool)
left join placebo_rates rate using (run_id, tool, threshold)
union all
select rt.run_id,
       rt.tool,
       counted.threshold,
       counted.threshold = rt.keep_threshold as is_keep_threshold,
       counted.calls,
       counted.texts,
       counted.releasable_calls,
       rate.placebos,
       rate.placebos_scored,
       rate.false_discovery_rate,
       rate.rate_low,
       rate.rate_high
from run_tools rt
cross join lateral (
    with thresholds as (
        select usual.threshold
        from unnest(array[0.5, 1.0, 2.0]::double precision[]) as usual (threshold)
        where usual.threshold >= rt.prune_below  -- below it, not all calls were computed
        union
        select rt.keep_threshold
    ),
    -- Within the lateral query the recipes are constants, so that Postgres reads only their partitions.
    reached as materialized (
        select loss.document_id, loss.reason, loss.loss_reduction, call.input_only_after
        from call_losses loss
        join candidate_calls call
            on call.sampling_recipe_id = rt.sampling_recipe_id and call.document_id = loss.document_id and call.call_id = loss.call_id
        join run_tool_documents member
            on member.run_id = rt.run_id and member.tool = rt.tool and member.variant_id = loss.document_id
        where loss.scoring_recipe_id = rt.scoring_recipe_id
          and run_keeps(loss.reason, loss.loss_reduction, least(0.5, rt.keep_threshold),
              rt.placebo_recipe_id, loss.document_id, loss.call_id, rt.tau_information)
    )
    select thresholds.threshold,
           count(reached.document_id) as calls,
           count(distinct reached.document_id) as texts,
           count(reached.document_id) filter (where not reached.input_only_after) as releasable_calls
    from thresholds
    left join reached on is_kept(reached.reason, reached.loss_reduction, thresholds.threshold)
    group by thresholds.threshold
) counted
left join placebo_rates rate on rate.run_id = rt.run_id and rate.tool = rt.tool and rate.threshold = counted.threshold
where not exists (select from stored_runs stored where stored.run_id = rt.run_id);
comment on view threshold_counts is 'The paper''s Table 2: how many calls, in how many texts, the run''s keep rule keeps at a threshold, for each tool of each run at 0.5, 1.0 and 2.0 nats and at the tool''s own threshold; and how many of them it would keep by chance. Every count is exact; a threshold below the run''s prune_below has no row. The rate is counted by the tool''s check, and null before it and without placebos.';
comment on column threshold_counts.run_id is 'The run.';
comment on column threshold_counts.tool is 'The tool''s name.';
comment on column threshold_counts.threshold is 'tau_f, nats.';
comment on column threshold_counts.is_keep_threshold is 'Whether it is the tool''s own threshold in this run.';
comment on column threshold_counts.calls is 'Number of scored calls with loss_reduction >= threshold, and with information >= tau_information where the run has such a bound.';
comment on column threshold_counts.texts is 'Number of texts with at least one of them.';
comment on column threshold_counts.releasable_calls is 'Of calls those whose input does not occur only after them.';
comment on column threshold_counts.placebos is 'Sampled placebos, results of other calls in a call''s place, that the same rule would keep.';
comment on column threshold_counts.placebos_scored is 'Sampled calls that have a placebo: a rate on fewer than 30 says too little, and reports do not show it.';
comment on column threshold_counts.false_discovery_rate is 'Placebos expected among all calls with a result, over calls: the share of the calls that the rule keeps whatever their result is; at most 1.';
comment on column threshold_counts.rate_low is 'Lower end of its 95 % interval, by resampling documents.';
comment on column threshold_counts.rate_high is 'Upper end.';
