-- The calls of these documents that have a result and losses, with their paragraph's bounds.
select loss.document_id, loss.call_id, decision.start_char, decision.end_char, call.position_token, call.call_input, call.call_text,
       loss.result, loss.reason, loss.loss_without_call, loss.loss_without_result, loss.loss_with_result,
       loss.loss_without_call_full_context, loss.number_format, loss.reduction_bound
from call_losses loss
join candidate_calls call
    on call.sampling_recipe_id = :sampling_recipe_id and call.document_id = loss.document_id and call.call_id = loss.call_id
join filter_decisions decision
    on decision.filter_recipe_id = :filter_recipe_id and decision.document_id = call.document_id and decision.paragraph = call.paragraph
where loss.scoring_recipe_id = :scoring_recipe_id
  and loss.document_id = any(cast(:document_ids as uuid[]))
  and loss.result is not null and (loss.reason is null or loss.reason = 'pruned_below')
order by loss.document_id, call.position_char, loss.call_id
