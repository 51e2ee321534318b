create view yield_by_stage as
select rt.run_id, rt.tool, found.step, found.stage, found.reason, found.is_loss, found.count
from run_tools rt
join annotation_runs r on r.run_id = rt.run_id
cross join lateral (
    -- Within the lateral query the recipes are constants, so that only their partitions are read.
    with run_documents as materialized (
        select d.document_id
        from corpus_documents d
        where d.corpus_id = r.corpus_id and d.ordinal < coalesce(r.document_limit, 2147483647)
    ),
    decisions as (
        select f.kept, f.reason, count(*) as paragraphs
        from filter_decisions f
        join run_documents using (document_id)
        where f.filter_recipe_id = rt.filter_recipe_id
        group by f.kept, f.reason
    ),
    ledger as (
        select l.stage, counted.name, sum(counted.count::bigint)::bigint as count
        from stage_ledger l
        join run_documents using (document_id)
        cross join lateral jsonb_each_text(l.counts) as counted (name, count)
        where (l.stage = 'sample' and l.recipe_id = rt.sampling_recipe_id)
           or (l.stage = 'execute' and l.recipe_id = rt.execution_recipe_id)
           or (l.stage = 'score' and l.recipe_id = rt.scoring_recipe_id)
        group by l.stage, counted.name
    ),
    kept as (
        select count(*) filter (where l.loss_reduction >= rt.keep_threshold) as calls,
               count(distinct l.document_id) filter (where l.loss_reduction >= rt.keep_threshold) as texts,
               count(*) filter (where l.loss_reduction < rt.keep_threshold) as below
        from call_losses l
        join run_documents using (document_id)
        where l.scoring_recipe_id = rt.scoring_recipe_id and l.reason is null
    ),
    unreleasable as (
        select count(*) as calls
        from call_losses l
        join run_documents using (document_id)
        join candidate_calls c on c.sampling_recipe_id = rt.sampling_recipe_id and c.call_id = l.call_id
        where l.scoring_recipe_id = rt.scoring_recipe_id and l.reason is null
          and l.loss_reduction >= rt.keep_threshold and c.input_only_after
    )
    select 1 as step, 'filter' as stage, 'texts' as reason, false as is_loss, count(*) as count from run_documents
    union all
    select 1, 'filter', 'paragraphs', false, coalesce(sum(paragraphs), 0)::bigint from decisions
    union all
    select 1, 'filter', 'kept_paragraphs', false, coalesce(sum(paragraphs) filter (where kept), 0)::bigint from decisions
    union all
    select 1, 'filter', reason, true, paragraphs from decisions where not kept
    union all
    select case stage when 'sample' then 2 when 'execute' then 3 else 4 end, stage, name,
           name not in ('paragraphs', 'positions', 'samples', 'candidates', 'calls', 'inputs', 'executed', 'from_cache',
                        'with_result', 'scored'),
           count
    from ledger
    union all
    select 5, 'keep', 'kept', false, calls from kept
    union all
    select 5, 'keep', 'kept_texts', false, texts from kept
    union all
    select 5, 'keep', 'below_threshold', true, below from kept
    union all
    select 6, 'release', 'input_only_after', true, calls from unreleasable
) found;
comment on view yield_by_stage is 'What became of a run''s texts, by tool and stage: how many paragraphs, positions, samples and calls there were, and why the others were lost. Counts what earlier runs did under the same recipes too.';
comment on column yield_by_stage.run_id is 'The run.';
comment on column yield_by_stage.tool is 'The tool''s name.';
comment on column yield_by_stage.step is 'Order of the stages, 1 to 6.';
comment on column yield_by_stage.stage is 'filter, sample, execute, score, keep or release.';
comment on column yield_by_stage.reason is 'What is counted: texts, paragraphs, positions, samples, candidates, executed, scored, kept, ..., or the reason for a loss; positions_pruned_below and pruned_below count what provably cannot reach the run''s prune_below.';
comment on column yield_by_stage.is_loss is 'Whether the row counts what was lost, and reason says why.';
comment on column yield_by_stage.count is 'How many: paragraphs in filter, samples in sample (positions, positions_pruned_below: positions), calls from there on (inputs and executed: inputs; texts, kept_texts: texts).';
