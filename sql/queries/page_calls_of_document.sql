-- The keys of all candidate calls of one tool in a text, in its order.
select document_id, call_id
from candidate_calls
where sampling_recipe_id = :sampling_recipe_id and document_id = cast(:document_id as uuid)
order by position_char, call_id
limit :at_most
