-- The scored calls that come nearest to the threshold of their tool, one a text.
with nearest_of_text as (
    select distinct on (document_id) tool, text_before, call_text, result, text_after, loss_reduction, keep_threshold, document_id
    from scored_calls
    where run_id = :run_id and not input_only_after
    order by document_id, keep_threshold - loss_reduction, call_text
)
select tool, text_before, call_text, result, text_after, loss_reduction, keep_threshold
from nearest_of_text
order by keep_threshold - loss_reduction, document_id
limit :at_most
