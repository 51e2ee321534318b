-- The run's documents that a filter has not judged, in the order of their ids.
select d.document_id
from run_documents d
where d.run_id = :run_id
  and not exists (
      select from stage_ledger l
      where l.recipe_id = :recipe_id and l.document_id = d.document_id and l.stage = 'filter')
order by d.document_id
