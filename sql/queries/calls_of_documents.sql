-- The candidate calls of these documents, in the order of the text.
select document_id, call_id, paragraph, position_token, position_char, call_input, call_text, input_key, effective_input,
       sample_count, input_only_after
from candidate_calls
where sampling_recipe_id = :sampling_recipe_id
  and document_id = any(cast(:document_ids as uuid[]))
order by document_id, position_char, call_id
