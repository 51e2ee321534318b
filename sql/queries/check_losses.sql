-- The scored calls of one tool in one run: their losses, and the loss reduction computed anew.
select
    cast(loss.call_id as text) as call_id,
    loss.loss_without_call,
    loss.loss_without_result,
    loss.loss_with_result,
    loss.loss_reduction,
    least(loss.loss_without_call, loss.loss_without_result) - loss.loss_with_result as reduction_by_definition
from run_tools registered
join call_losses loss on loss.scoring_recipe_id = registered.scoring_recipe_id
join run_documents member on member.run_id = registered.run_id and member.document_id = loss.document_id
where registered.run_id = current_setting('toolformer.run_id')
  and registered.tool = current_setting('toolformer.tool')
  and loss.reason is null
