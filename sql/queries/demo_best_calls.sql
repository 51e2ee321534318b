-- The kept calls that save most, one a text.
with best_of_text as (
    select distinct on (document_id) tool, text_before, call_text, result, text_after, loss_reduction, document_id
    from kept_calls
    where run_id = :run_id and releasable
    order by document_id, loss_reduction desc, call_text
)
select tool, text_before, call_text, result, text_after, loss_reduction
from best_of_text
order by loss_reduction desc, document_id
limit :at_most
