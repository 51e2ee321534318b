-- Rows to check: the scored calls of one tool in one run with their losses.
create temporary table checked_losses as
select
    cast(loss.call_id as text) as call_id,
    loss.loss_without_call,
    loss.loss_without_result,
    loss.loss_without_call_full_context,
    loss.loss_with_result,
    loss.loss_reduction
from call_losses loss
join run_tool_documents member
    on member.run_id = :run_id and member.tool = :tool and member.variant_id = loss.document_id
where loss.scoring_recipe_id = :scoring_recipe_id
  and loss.reason is null
