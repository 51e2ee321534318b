-- Rows to check: the candidate calls of one tool in one run, with the length of their texts.
create temporary table checked_calls as
select
    cast(call.call_id as text) as call_id,
    call.position_char,
    char_length(document.text) as text_length,
    call.position_probability
from candidate_calls call
join run_tool_documents member
    on member.run_id = :run_id and member.tool = :tool and member.variant_id = call.document_id
join documents document on document.document_id = call.document_id
where call.sampling_recipe_id = :sampling_recipe_id
