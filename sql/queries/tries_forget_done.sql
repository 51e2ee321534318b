-- Tries of a stage under a recipe whose documents are all done by now.
delete from micro_batch_tries tried
where tried.recipe_id = :recipe_id
  and tried.stage = :stage
  and not exists (
      select from unnest(tried.document_ids) as asked (document_id)
      where not exists (
          select from stage_ledger done
          where done.recipe_id = tried.recipe_id and done.document_id = asked.document_id and done.stage = tried.stage))
