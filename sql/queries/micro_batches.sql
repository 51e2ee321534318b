-- What a micro-batch writes beside its rows: its sums, and the hashes of the rows in the ledger.

-- name: insert
insert into micro_batches (run_id, tool, stage, recipe_id, documents, tokens, rows_written, counts, seconds,
    start_up_seconds,
                           network_tokens, network_seconds, network_operations, peak_operations, cards)
values (:run_id, :tool, :stage, :recipe_id, :documents, :tokens, :rows_written, :counts, :seconds,
    :start_up_seconds,
        :network_tokens, :network_seconds, :network_operations, :peak_operations, :cards)
returning batch_id

-- name: ledger
-- Which of these documents the micro-batch finished.
select document_id
from stage_ledger
where stage = :stage and recipe_id = :recipe_id and document_id = any(cast(:document_ids as uuid[]))
    and batch_id = :batch_id

-- name: correct
-- Another process finished some documents of this micro-batch first: its sums are those of its own ledger
-- rows.
update micro_batches
set documents = :documents, tokens = :tokens, rows_written = :rows_written, counts = :counts,
    seconds = :seconds
where batch_id = :batch_id

-- name: hashes
-- Hashes of what a stage wrote about these documents, for their ledger rows; of execute the answers to all
-- inputs that they ask. Of the five queries Postgres plans the one that is asked for.
select asked.document_id, rows_hash(case cast(:stage as text)
    when 'filter' then (
        select string_agg(filter_row_text(decision), chr(10) order by decision.paragraph)
        from filter_decisions decision
        where decision.filter_recipe_id = :filter_recipe_id and decision.document_id = asked.document_id)
    when 'sample' then concat_ws(chr(10), (
        select string_agg(call_row_text(call), chr(10) order by call.call_id)
        from candidate_calls call
        where call.sampling_recipe_id = :sampling_recipe_id and call.document_id = asked.document_id), (
        select string_agg(pruned_row_text(position), chr(10)
            order by position.paragraph, position.position_token)
        from pruned_positions position
        where position.sampling_recipe_id = :sampling_recipe_id and position.document_id = asked.document_id))
    when 'execute' then (
        select string_agg(answer.row_text, chr(10) order by input.input_key)
        from (
            select distinct call.input_key
            from candidate_calls call
            where call.sampling_recipe_id = :sampling_recipe_id and call.document_id = asked.document_id
        ) input
        cross join lateral (
            select result_row_text(result) as row_text
            from call_results result
            where result.tool = :tool and result.tool_version = :tool_version
                and result.input_key = input.input_key
            -- by its key: without statistics Postgres would read all results of the tool for each document
            limit 1
        ) answer)
    when 'score' then (
        select string_agg(losses_row_text(loss), chr(10) order by loss.call_id)
        from call_losses loss
        where loss.scoring_recipe_id = :scoring_recipe_id and loss.document_id = asked.document_id)
    when 'placebo' then (
        select string_agg(placebo_row_text(placebo), chr(10) order by placebo.call_id, placebo.number)
        from placebo_losses placebo
        where placebo.placebo_recipe_id = :placebo_recipe_id and placebo.document_id = asked.document_id)
    end) as rows_hash
from unnest(cast(:document_ids as uuid[])) as asked (document_id)
