-- A micro-batch that is about to be committed; returns its number.
insert into micro_batches (run_id, tool, stage, recipe_id, documents, tokens, rows_written, counts, seconds, start_up_seconds)
select :run_id, :tool, :stage, :recipe_id, :documents, coalesce(sum(kept.tokens), 0), :rows_written, :counts, :seconds, :start_up_seconds
from (
    select about_tokens(sum(end_char - start_char)) as tokens
    from filter_decisions
    where filter_recipe_id = :filter_recipe_id
      and document_id = any(cast(:document_ids as uuid[]))
      and kept
    group by document_id
) kept
returning batch_id
