create view yield_by_stage as
select stored.run_id, stored.tool, stored.step, stored.stage, stored.reason, stored.is_loss, stored.count,
    stored.documents
from finished_run_yield stored
join stored_runs using (run_id)
union all
select rt.run_id, rt.tool, counted.step, counted.stage, counted.reason, counted.is_loss, counted.count,
    counted.documents
from run_tools rt
join annotation_runs run using (run_id)
cross join lateral counted_yield(rt, run, null) counted
where not exists (select from stored_runs stored where stored.run_id = rt.run_id);
comment on view yield_by_stage is
    'How many texts, paragraphs, positions, samples and calls each stage of a run has, by tool, and why the '
    'others were lost. Includes the work of earlier runs under the same recipes. Each stage adds up in its '
    'unit: what enters it is what leaves it plus its losses.';
comment on column yield_by_stage.reason is
    'What is counted: texts, paragraphs, positions, samples, candidates, executed, scored, within_rounding '
    '(its loss reduction in bfloat16 or float16 is so near to the keep threshold or to prune_below that '
    'rounding may decide), verified_in_tf32 and verified_in_float32 of these, with_placebos and '
    'without_placebos (of the placebo stage''s calls), placebos, kept, released, ..., or the reason for a '
    'loss. texts_without_position: no call starts in the text with the least probability. '
    'positions_pruned_below and pruned_below: provably cannot reach the run''s prune_below. '
    'no_other_result: no call of another document has another result. only_compared: a sampled placebo was '
    'compared with this one, whose reduction is not known. process_killed and out_of_memory: the text was '
    'given up (run_failed_documents). like_a_placebo: the call reaches the threshold, and its result '
    'carries less information than the run asks for, or it has no placebo. better_call_at_position: a call '
    'of any tool at the same position saves more. above_max_examples: the tool has max_examples_per_tool '
    'texts without it. holds_evaluation_data: its text shares words with evaluation data. not_in_release: '
    'the tool is lacking in the release, or the release was made before these reasons were counted or '
    'before the call was scored.';
comment on column yield_by_stage.count is
    'How many: paragraphs in filter, samples in sample (positions, positions_pruned_below: positions; '
    'texts_without_position: texts), calls from there on (inputs and executed: inputs; in placebo, if a '
    'call may have several, placebos, but for calls, with_placebos and without_placebos; texts, kept_texts: '
    'texts).';
comment on column yield_by_stage.documents is
    'For a count of the ledger, the documents whose ledger row has it, also with 0: by it a later run tells '
    'whether the count still occurs. It is no number of texts that lost something; else null.';
call inherit_comments('yield_by_stage', 'finished_run_yield');
