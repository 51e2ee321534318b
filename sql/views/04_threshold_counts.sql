create view threshold_counts as
select rt.run_id,
       rt.tool,
       counted.threshold,
       counted.threshold = rt.keep_threshold as is_keep_threshold,
       counted.calls,
       counted.texts,
       counted.releasable_calls
from run_tools rt
join annotation_runs r on r.run_id = rt.run_id
cross join lateral (
    with asked as (
        select usual.threshold
        from unnest(array[0.5, 1.0, 2.0]::double precision[]) as usual (threshold)
        where usual.threshold >= rt.prune_below  -- below it calls were not all computed
        union
        select rt.keep_threshold
    ),
    -- Within the lateral query the recipes are constants, so that only their partitions are read.
    reached as materialized (
        select l.document_id, l.loss_reduction, c.input_only_after
        from call_losses l
        join candidate_calls c on c.sampling_recipe_id = rt.sampling_recipe_id and c.call_id = l.call_id
        join corpus_documents d on d.corpus_id = r.corpus_id and d.document_id = l.document_id
            and d.ordinal < coalesce(r.document_limit, 2147483647)
        where l.scoring_recipe_id = rt.scoring_recipe_id
          and l.reason is null
          and l.loss_reduction >= least(0.5, rt.keep_threshold)
    )
    select asked.threshold,
           count(reached.document_id) as calls,
           count(distinct reached.document_id) as texts,
           count(reached.document_id) filter (where not reached.input_only_after) as releasable_calls
    from asked
    left join reached on reached.loss_reduction >= asked.threshold
    group by asked.threshold
) counted;
comment on view threshold_counts is 'The paper''s Table 2: how many calls, in how many texts, save at least a threshold, for each tool of each run at 0.5, 1.0 and 2.0 nats and at the tool''s own threshold. Every count is exact; a threshold below the run''s prune_below has no row.';
comment on column threshold_counts.run_id is 'The run.';
comment on column threshold_counts.tool is 'The tool''s name.';
comment on column threshold_counts.threshold is 'tau_f, nats.';
comment on column threshold_counts.is_keep_threshold is 'Whether it is the tool''s own threshold in this run.';
comment on column threshold_counts.calls is 'Number of scored calls with loss_reduction >= threshold.';
comment on column threshold_counts.texts is 'Number of texts with at least one of them.';
comment on column threshold_counts.releasable_calls is 'Of calls those whose input does not stand only after them.';
