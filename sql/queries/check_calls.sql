-- Rows to check: the candidate calls in checked_members, with the length of their texts.
create temporary table checked_calls as
select
    call.call_id,
    call.position_char,
    char_length(document.text) as text_length,
    call.position_probability
from checked_members member
join candidate_calls call on call.document_id = member.variant_id
join documents document on document.document_id = member.variant_id
where call.sampling_recipe_id = :sampling_recipe_id
