-- The candidate calls of one tool in one run, with the length of their texts.
select
    cast(call.call_id as text) as call_id,
    call.position_char,
    char_length(document.text) as text_length,
    call.position_probability
from candidate_calls call
join run_documents member on member.document_id = call.document_id
join documents document on document.document_id = call.document_id
where call.sampling_recipe_id = current_setting('toolformer.sampling_recipe_id')
  and member.run_id = current_setting('toolformer.run_id')
