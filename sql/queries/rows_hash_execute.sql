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
