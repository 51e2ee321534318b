-- The scored calls of one tool in one run: their losses, and the loss reduction computed anew.
select
    cast(loss.call_id as text) as call_id,
    loss.loss_without_call,
    loss.loss_without_result,
    loss.loss_with_result,
    loss.loss_reduction,
    loss_reduction(
        loss.loss_without_call, loss.loss_without_result, loss.loss_without_call_full_context, loss.loss_with_result
    ) as reduction_by_definition
from call_losses loss
join run_documents member on member.document_id = loss.document_id
where loss.scoring_recipe_id = current_setting('toolformer.scoring_recipe_id')
  and member.run_id = current_setting('toolformer.run_id')
  and loss.reason is null
