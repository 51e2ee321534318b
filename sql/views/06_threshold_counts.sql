create view threshold_counts as
select stored.run_id, stored.tool, stored.threshold, stored.threshold = rt.keep_threshold as is_keep_threshold,
       stored.calls, stored.texts, stored.releasable_calls
from finished_run_thresholds stored
join stored_runs using (run_id)
join run_tools rt using (run_id, tool)
union all
select rt.run_id,
       rt.tool,
       counted.threshold,
       counted.threshold = rt.keep_threshold as is_keep_threshold,
       counted.calls,
       counted.texts,
       counted.releasable_calls
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
          and is_kept(loss.reason, loss.loss_reduction, least(0.5, rt.keep_threshold))
    )
    select thresholds.threshold,
           count(reached.document_id) as calls,
           count(distinct reached.document_id) as texts,
           count(reached.document_id) filter (where not reached.input_only_after) as releasable_calls
    from thresholds
    left join reached on is_kept(reached.reason, reached.loss_reduction, thresholds.threshold)
    group by thresholds.threshold
) counted
where not exists (select from stored_runs stored where stored.run_id = rt.run_id);
comment on view threshold_counts is 'The paper''s Table 2: how many calls, in how many texts, save at least a threshold, for each tool of each run at 0.5, 1.0 and 2.0 nats and at the tool''s own threshold. Every count is exact; a threshold below the run''s prune_below has no row.';
comment on column threshold_counts.run_id is 'The run.';
comment on column threshold_counts.tool is 'The tool''s name.';
comment on column threshold_counts.threshold is 'tau_f, nats.';
comment on column threshold_counts.is_keep_threshold is 'Whether it is the tool''s own threshold in this run.';
comment on column threshold_counts.calls is 'Number of scored calls with loss_reduction >= threshold.';
comment on column threshold_counts.texts is 'Number of texts with at least one of them.';
comment on column threshold_counts.releasable_calls is 'Of calls those whose input does not occur only after them.';
