-- A judgement; the same form sent twice is one row. No column of the conflict is named: the role that writes may read none.
insert into judgements
    (submission_id, release_id, seed, tool, document_id, call_id, scoring_recipe_id, is_placebo, source_call_id, reviewer, verdict)
values
    (:submission_id, :release_id, :seed, :tool, :document_id, :call_id, :scoring_recipe_id, :is_placebo, :source_call_id, :reviewer, :verdict)
on conflict do nothing
