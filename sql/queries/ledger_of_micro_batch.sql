-- Which of these documents the micro-batch finished.
select document_id
from stage_ledger
where stage = :stage and recipe_id = :recipe_id and document_id = any(cast(:document_ids as uuid[])) and batch_id = :batch_id
