-- The candidate calls of one tool in one run, with the length of their texts.
select
    cast(call.call_id as text) as call_id,
    call.position_char,
    char_length(document.text) as text_length,
    call.position_probability
from run_tools registered
join candidate_calls call on call.sampling_recipe_id = registered.sampling_recipe_id
join run_documents member on member.run_id = registered.run_id and member.document_id = call.document_id
join documents document on document.document_id = call.document_id
where registered.run_id = current_setting('toolformer.run_id')
  and registered.tool = current_setting('toolformer.tool')
