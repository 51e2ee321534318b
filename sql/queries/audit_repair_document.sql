-- Delete a text that no corpus holds, unless a stage has rows of it.
delete from documents document
where document.document_id = :document_id
  and not exists (select from corpus_documents member where member.document_id = document.document_id)
  and not exists (select from corpus_documents member where member.variant_id = document.document_id)
  and not exists (select from corpus_spare_records spare where spare.document_id = document.document_id)
  and not exists (select from documents variant where variant.variant_of = document.document_id)
  and not exists (
      select
      from recipes recipe
      join stage_ledger done on done.recipe_id = recipe.recipe_id and done.document_id = document.document_id
  )
