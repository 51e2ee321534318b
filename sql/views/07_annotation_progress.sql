create view annotation_progress as
select stored.run_id, stored.tool, stored.step, stored.stage, stored.done, stored.total, null::bigint as tokens_done, null::bigint as tokens
from finished_run_progress stored
join stored_runs using (run_id)
union all
select rt.run_id, rt.tool, stages.step, stages.stage, stages.done, stages.total, stages.tokens_done, stages.tokens
from run_tools rt
join annotation_runs run using (run_id)
cross join lateral (
    with kept as (
        select document_id, about_tokens(sum(end_char - start_char)) as tokens
        from filter_decisions
        where filter_recipe_id = rt.filter_recipe_id and kept
        group by document_id
    )
    select count(*) as documents,
           count(filtered.document_id) as filtered,
           count(kept.document_id) as to_annotate,
           coalesce(sum(kept.tokens), 0)::bigint as tokens,
           count(sampled.document_id) filter (where kept.document_id is not null) as sampled,
           coalesce(sum(kept.tokens) filter (where sampled.document_id is not null), 0)::bigint as sampled_tokens,
           count(executed.document_id) filter (where kept.document_id is not null) as executed,
           coalesce(sum(kept.tokens) filter (where executed.document_id is not null), 0)::bigint as executed_tokens,
           count(scored.document_id) filter (where kept.document_id is not null) as scored,
           coalesce(sum(kept.tokens) filter (where scored.document_id is not null), 0)::bigint as scored_tokens,
           count(placebo.document_id) filter (where kept.document_id is not null) as placebos,
           coalesce(sum(kept.tokens) filter (where placebo.document_id is not null), 0)::bigint as placebo_tokens
    from run_tool_documents d
    left join kept on kept.document_id = d.variant_id
    left join stage_ledger filtered
        on filtered.recipe_id = rt.filter_recipe_id and filtered.document_id = d.variant_id and filtered.stage = 'filter'
    left join stage_ledger sampled
        on sampled.recipe_id = rt.sampling_recipe_id and sampled.document_id = d.variant_id and sampled.stage = 'sample'
    left join stage_ledger executed
        on executed.recipe_id = rt.execution_recipe_id and executed.document_id = d.variant_id and executed.stage = 'execute'
    left join stage_ledger scored
        on scored.recipe_id = rt.scoring_recipe_id and scored.document_id = d.variant_id and scored.stage = 'score'
    left join stage_ledger placebo
        on placebo.recipe_id = rt.placebo_recipe_id and placebo.document_id = d.variant_id and placebo.stage = 'placebo'
    where d.run_id = rt.run_id and d.tool = rt.tool
) counted
cross join lateral (
    values (1, 'filter', filtered, documents, null, null),
           (2, 'sample', sampled, to_annotate, sampled_tokens, tokens),
           (3, 'execute', executed, to_annotate, executed_tokens, tokens),
           (4, 'score', scored, to_annotate, scored_tokens, tokens),
           (5, 'placebo', placebos, to_annotate, placebo_tokens, tokens)
) stages (step, stage, done, total, tokens_done, tokens)
where not exists (select from stored_runs stored where stored.run_id = rt.run_id)
  and (stages.stage <> 'placebo' or has_placebos(run.parameters, rt.placebo_recipe_id));
comment on view annotation_progress is 'How far each stage is, for each tool of each run, in documents. A run is done where done = total everywhere; what earlier runs did under the same recipe counts as done.';
comment on column annotation_progress.run_id is 'The run.';
comment on column annotation_progress.tool is 'The tool''s name.';
comment on column annotation_progress.step is 'Order of the stages, 1 to 5.';
comment on column annotation_progress.stage is 'filter, sample, execute, score or placebo; placebo only where the run asks for placebos, or has some.';
comment on column annotation_progress.done is 'Documents with a row in stage_ledger.';
comment on column annotation_progress.total is 'filter: the run''s documents; the others: those with a kept paragraph, as far as filtering has come.';
comment on column annotation_progress.tokens_done is 'About how many tokens the filter kept of those that are done (about_tokens). Null for the filter, and for a finished run.';
comment on column annotation_progress.tokens is 'The same of all: the share of the work that is done is tokens_done of tokens, since a text may be a hundred times as long as another.';
