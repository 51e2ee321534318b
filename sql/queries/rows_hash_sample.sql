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
