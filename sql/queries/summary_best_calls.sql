-- The new calls of compared_calls that save most, with the text around them.
select call.tool, call.call_text, call.result, call.loss_reduction,
       substring(document.text from greatest(call.position_char - 60, 0) + 1 for least(call.position_char, 60)) as text_before,
       substring(document.text from call.position_char + 1 for 30) as text_after
from compared_calls call
join documents document using (document_id)
where call.is_added and call.call_text is not null and call.loss_reduction is not null
order by call.loss_reduction desc, call.document_id, call.position_char, call.tool
limit :at_most
