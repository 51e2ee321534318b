-- Hashes of the losses of these documents' calls, for their ledger rows.
select asked.document_id, rows_hash(found.row_texts) as rows_hash
from unnest(cast(:document_ids as uuid[])) as asked (document_id)
cross join lateral (
    select string_agg(losses_row_text(loss), chr(10) order by loss.call_id) as row_texts
    from call_losses loss
    where loss.scoring_recipe_id = :scoring_recipe_id and loss.document_id = asked.document_id
) found
