-- A micro-batch that is about to be committed; returns its number.
insert into micro_batches (run_id, tool, stage, recipe_id, documents, tokens, rows_written, counts, seconds, start_up_seconds)
values (:run_id, :tool, :stage, :recipe_id, :documents, :tokens, :rows_written, :counts, :seconds, :start_up_seconds)
returning batch_id
