-- The calls of release_changes, place by place.
select is_added, tool, reason, detail, document_id, position_char, call_text, result, loss_reduction
from release_changes
order by document_id, position_char, is_added, tool
limit :at_most
