-- The hash of the placebos of documents, as stage_ledger keeps it.
select asked.document_id,
       rows_hash(
           (select string_agg(placebo_row_text(placebo), chr(10) order by placebo.call_id, placebo.number)
            from placebo_losses placebo
            where placebo.placebo_recipe_id = :placebo_recipe_id and placebo.document_id = asked.document_id)) as rows_hash
from unnest(cast(:document_ids as uuid[])) as asked (document_id)
