-- What a micro-batch writes beside its rows: its sums, and the hashes of the rows in the ledger.

-- name: insert
-- A micro-batch that is about to be committed; returns its number.
insert into micro_batches (run_id, tool, stage, recipe_id, documents, tokens, rows_written, counts, seconds, start_up_seconds)
values (:run_id, :tool, :stage, :recipe_id, :documents, :tokens, :rows_written, :counts, :seconds, :start_up_seconds)
returning batch_id

-- name: ledger
-- Which of these documents the micro-batch finished.
select document_id
from stage_ledger
where stage = :stage and recipe_id = :recipe_id and document_id = any(cast(:document_ids as uuid[])) and batch_id = :batch_id

-- name: correct
-- Another process finished some documents of this micro-batch first: its sums are those of its own ledger rows.
update micro_batches
set documents = :documents, tokens = :tokens, rows_written = :rows_written, counts = :counts, seconds = :seconds
where batch_id = :batch_id

-- name: filter_hashes
-- Hashes of the filter decisions of these documents, for their ledger rows.
select asked.document_id, rows_hash(found.row_texts) as rows_hash
from unnest(cast(:document_ids as uuid[])) as asked (document_id)
cross join lateral (
    select string_agg(filter_row_text(decision), chr(10) order by decision.paragraph) as row_texts
    from filter_decisions decision
    where decision.filter_recipe_id = :filter_recipe_id and decision.document_id = asked.document_id
) found

-- name: sample_hashes
-- Hashes of the candidate calls and pruned positions of these documents, for their ledger rows.
select asked.document_id, rows_hash(concat_ws(chr(10), calls.row_texts, pruned.row_texts)) as rows_hash
from unnest(cast(:document_ids as uuid[])) as asked (document_id)
cross join lateral (
    select string_agg(call_row_text(call), chr(10) order by call.call_id) as row_texts
    from candidate_calls call
    where call.sampling_recipe_id = :sampling_recipe_id and call.document_id = asked.document_id
) calls
cross join lateral (
    select string_agg(pruned_row_text(position), chr(10) order by position.paragraph, position.position_token) as row_texts
    from pruned_positions position
    where position.sampling_recipe_id = :sampling_recipe_id and position.document_id = asked.document_id
) pruned

-- name: execute_hashes
-- Hashes of what a tool answered to all inputs that these documents ask, for their ledger rows.
select asked.document_id, rows_hash(found.row_texts) as rows_hash
from unnest(cast(:document_ids as uuid[])) as asked (document_id)
cross join lateral (
    select string_agg(answer.row_text, chr(10) order by input.input_key) as row_texts
    from (
        select distinct call.input_key
        from candidate_calls call
        where call.sampling_recipe_id = :sampling_recipe_id and call.document_id = asked.document_id
    ) input
    cross join lateral (
        select result_row_text(result) as row_text
        from call_results result
        where result.tool = :tool and result.tool_version = :tool_version and result.input_key = input.input_key
        limit 1  -- by its key: without statistics Postgres would read all results of the tool for each document
    ) answer
) found

-- name: score_hashes
-- Hashes of the losses of these documents' calls, for their ledger rows.
select asked.document_id, rows_hash(found.row_texts) as rows_hash
from unnest(cast(:document_ids as uuid[])) as asked (document_id)
cross join lateral (
    select string_agg(losses_row_text(loss), chr(10) order by loss.call_id) as row_texts
    from call_losses loss
    where loss.scoring_recipe_id = :scoring_recipe_id and loss.document_id = asked.document_id
) found

-- name: placebo_hashes
-- Hashes of the placebos of these documents, for their ledger rows.
select asked.document_id,
       rows_hash(
           (select string_agg(placebo_row_text(placebo), chr(10) order by placebo.call_id, placebo.number)
            from placebo_losses placebo
            where placebo.placebo_recipe_id = :placebo_recipe_id and placebo.document_id = asked.document_id)) as rows_hash
from unnest(cast(:document_ids as uuid[])) as asked (document_id)
