-- A row where the stage has done any document under the recipe, rather than given it up.
select 1
from stage_ledger done
where done.recipe_id = :recipe_id
  and done.stage = :stage
  and not exists (
      select from failed_documents failed
      where failed.recipe_id = done.recipe_id and failed.document_id = done.document_id and failed.stage = done.stage)
limit 1
