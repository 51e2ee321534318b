-- Documents to compute again: those with calls from a place on in the order of their ids, which are hashes of their texts, and then from the
-- first one on. Not those that a stage has given up, which kill their process, nor those whose text this audit found to be damaged.
with scored as (
    (select document_id, rows_written, 0 as turn
     from stage_ledger
     where stage = 'score' and recipe_id = :recipe_id and document_id > cast(:start as uuid) and rows_written > 0
     order by document_id
     limit :calls)
    union all
    (select document_id, rows_written, 1
     from stage_ledger
     where stage = 'score' and recipe_id = :recipe_id and document_id <= cast(:start as uuid) and rows_written > 0
     order by document_id
     limit :calls)
)
select scored.document_id, document.text, document.url, document.document_date
from (
    select *, sum(rows_written) over (order by turn, document_id) - rows_written as calls_before from scored
) scored
join documents document using (document_id)
where scored.calls_before < :calls
  and not exists (
      select from audit_findings damaged
      where damaged.audit_id = :audit_id and damaged.relation = 'documents' and damaged.place = cast(scored.document_id as text))
  and not exists (select from failed_documents given_up where given_up.document_id = scored.document_id and given_up.tool = :tool)
order by scored.turn, scored.document_id
