-- Hashes of the filter decisions of these documents, for their ledger rows.
select asked.document_id, rows_hash(found.row_texts) as rows_hash
from unnest(cast(:document_ids as uuid[])) as asked (document_id)
cross join lateral (
    select string_agg(filter_row_text(decision), chr(10) order by decision.paragraph) as row_texts
    from filter_decisions decision
    where decision.filter_recipe_id = :filter_recipe_id and decision.document_id = asked.document_id
) found
