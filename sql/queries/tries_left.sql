-- The tries of a stage under a recipe whose rows are left, oldest first.
select try_id, document_ids
from micro_batch_tries
where recipe_id = :recipe_id and stage = :stage
order by try_id
