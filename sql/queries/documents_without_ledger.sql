-- Of these documents those that the stage has not finished under the recipe, in the order of their ids.
select d.document_id, d.text, d.url, d.document_date, d.title
from documents d
where d.document_id = any(cast(:document_ids as uuid[]))
  and not exists (
      select from stage_ledger l
      where l.recipe_id = :recipe_id and l.document_id = d.document_id and l.stage = :stage)
order by d.document_id
