-- The run's documents that a filter has not judged, in the order of their ids.
select d.variant_id as document_id
from run_tool_documents d
where d.run_id = :run_id and d.tool = :tool
  and not exists (
      select from stage_ledger l
      where l.recipe_id = :recipe_id and l.document_id = d.variant_id and l.stage = 'filter')
order by d.variant_id
