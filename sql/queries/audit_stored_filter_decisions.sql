-- Rows of documents under a recipe, to be compared with rows that were computed again.
select * from filter_decisions where filter_recipe_id = :recipe_id and document_id = any(cast(:document_ids as uuid[]))
