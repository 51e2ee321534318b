create view yield_by_stage as
select stored.run_id, stored.tool, stored.step, stored.stage, stored.reason, stored.is_loss, stored.count, stored.documents
from finished_run_yield stored
join stored_runs using (run_id)
union all
select rt.run_id, rt.tool, found.step, found.stage, found.reason, found.is_loss, found.count, found.documents
from run_tools rt
cross join lateral (
    -- Within the lateral query the recipes are constants, so that Postgres reads only their partitions.
    with members as materialized (
        select variant_id as document_id from run_tool_documents where run_id = rt.run_id and tool = rt.tool
    ),
    decisions as (
        select decision.kept, decision.reason, count(*) as paragraphs
        from filter_decisions decision
        join members using (document_id)
        where decision.filter_recipe_id = rt.filter_recipe_id
        group by decision.kept, decision.reason
    ),
    ledger as (
        select done.stage, counted.name, sum(counted.count::bigint)::bigint as count, count(*) as documents
        from stage_ledger done
        join members using (document_id)
        cross join lateral jsonb_each_text(done.counts) as counted (name, count)
        where (done.stage = 'sample' and done.recipe_id = rt.sampling_recipe_id)
           or (done.stage = 'execute' and done.recipe_id = rt.execution_recipe_id)
           or (done.stage = 'score' and done.recipe_id = rt.scoring_recipe_id)
           or (done.stage = 'placebo' and done.recipe_id = rt.placebo_recipe_id)
        group by done.stage, counted.name
    ),
    unsampled as (
        select count(*) as texts
        from stage_ledger done
        join members using (document_id)
        where done.stage = 'sample'
          and done.recipe_id = rt.sampling_recipe_id
          and coalesce((done.counts ->> 'positions')::bigint, 0) = 0
          and coalesce((done.counts ->> 'positions_pruned_below')::bigint, 0) = 0
          and not done.counts ?| array['process_killed', 'out_of_memory']
    ),
    scored as materialized (
        select loss.document_id, loss.call_id, is_kept(loss.reason, loss.loss_reduction, rt.keep_threshold) as reaches_threshold,
               run_keeps(loss.reason, loss.loss_reduction, rt.keep_threshold,
                       rt.placebo_recipe_id, loss.document_id, loss.call_id, rt.tau_information) as is_kept
        from call_losses loss
        join members using (document_id)
        where loss.scoring_recipe_id = rt.scoring_recipe_id and loss.reason is null
    ),
    kept as (
        select count(*) filter (where is_kept) as calls,
               count(distinct document_id) filter (where is_kept) as texts,
               count(*) filter (where reaches_threshold is not true) as below,
               count(*) filter (where reaches_threshold and not is_kept) as without_information
        from scored
    ),
    unreleasable as (
        select count(*) as calls
        from scored
        join candidate_calls call
            on call.sampling_recipe_id = rt.sampling_recipe_id and call.document_id = scored.document_id and call.call_id = scored.call_id
        where scored.is_kept and call.input_only_after
    ),
    -- No row before the run has a release.
    released as (
        select made.left_out -> rt.tool as left_out, count(call.call_id) as calls
        from run_releases made
        left join release_calls call on call.release_id = made.release_id and call.tool = rt.tool
        where made.run_id = rt.run_id
        group by made.left_out
    ),
    left_out as (
        select counted.name, counted.count::bigint as count
        from released
        cross join lateral jsonb_each_text(released.left_out) as counted (name, count)
    )
    select 1 as step, 'filter' as stage, 'texts' as reason, false as is_loss, count(*) as count, null::bigint as documents from members
    union all
    select 1, 'filter', 'paragraphs', false, coalesce(sum(paragraphs), 0)::bigint, null from decisions
    union all
    select 1, 'filter', 'kept_paragraphs', false, coalesce(sum(paragraphs) filter (where kept), 0)::bigint, null from decisions
    union all
    select 1, 'filter', reason, true, paragraphs, null from decisions where not kept
    union all
    select case stage when 'sample' then 2 when 'execute' then 3 when 'score' then 4 else 5 end, stage, name,
           counts_a_loss(name), count, documents
    from ledger
    union all
    select 2, 'sample', 'texts_without_position', true, texts, null from unsampled where texts > 0
    union all
    select 6, 'keep', 'kept', false, calls, null from kept
    union all
    select 6, 'keep', 'kept_texts', false, texts, null from kept
    union all
    select 6, 'keep', 'below_threshold', true, below, null from kept
    union all
    select 6, 'keep', 'below_tau_information', true, without_information, null from kept where rt.tau_information is not null
    union all
    select 7, 'release', 'input_only_after', true, calls, null from unreleasable
    union all
    select 7, 'release', 'released', false, calls, null from released
    union all
    select 7, 'release', name, true, count, null from left_out
    union all
    select 7, 'release', 'not_in_release', true,
           kept.calls - unreleasable.calls - released.calls - (select coalesce(sum(count), 0)::bigint from left_out), null
    from kept
    cross join unreleasable
    cross join released
) found
where not exists (select from stored_runs stored where stored.run_id = rt.run_id);
comment on view yield_by_stage is 'How many texts, paragraphs, positions, samples and calls each stage of a run has, by tool, and why the others were lost. Includes the work of earlier runs under the same recipes. Each stage adds up in its unit: what enters it is what leaves it plus its losses.';
comment on column yield_by_stage.run_id is 'The run.';
comment on column yield_by_stage.tool is 'The tool''s name.';
comment on column yield_by_stage.step is 'Order of the stages, 1 to 7.';
comment on column yield_by_stage.stage is 'filter, sample, execute, score, placebo, keep or release.';
comment on column yield_by_stage.reason is 'What is counted: texts, paragraphs, positions, samples, candidates, executed, scored, within_rounding (its loss reduction in bfloat16 or float16 is so near to the keep threshold or to prune_below that rounding may decide) and verified_in_float32 of these, with_placebos and without_placebos (of the placebo stage''s calls), placebos, kept, released, ..., or the reason for a loss. texts_without_position: no call starts in the text with the least probability. positions_pruned_below and pruned_below: provably cannot reach the run''s prune_below. no_other_result: no call of another document has another result. only_compared: a sampled placebo was compared with this one, whose reduction is not known. process_killed and out_of_memory: the text was given up (run_failed_documents). below_tau_information: the call reaches the threshold, and its result carries less information than the run asks for, or it has no placebo. better_call_at_position: a call of any tool at the same position saves more. above_max_examples: the tool has max_examples_per_tool texts without it. not_in_release: the tool is lacking in the release, or the release was made before these reasons were counted or before the call was scored.';
comment on column yield_by_stage.is_loss is 'Whether the row counts a loss; reason then says why.';
comment on column yield_by_stage.count is 'How many: paragraphs in filter, samples in sample (positions, positions_pruned_below: positions; texts_without_position: texts), calls from there on (inputs and executed: inputs; in placebo, where a call may have several, placebos, but for calls, with_placebos and without_placebos; texts, kept_texts: texts).';
comment on column yield_by_stage.documents is 'For a count of the ledger, the documents whose ledger row has it; else null.';
