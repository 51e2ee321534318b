-- The calls of compared_calls, place by place.
select is_added, tool, reason, detail, document_id, position_char, call_text, result, loss_reduction
from compared_calls
order by document_id, position_char, is_added, tool
limit :at_most
