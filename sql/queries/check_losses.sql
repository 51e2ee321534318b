-- Rows to check: the scored calls in checked_members with their losses.
create temporary table checked_losses as
select
    loss.call_id,
    loss.loss_without_call,
    loss.loss_without_result,
    loss.loss_without_call_full_context,
    loss.loss_with_result,
    loss.loss_reduction
from checked_members member
join call_losses loss on loss.document_id = member.variant_id
where loss.scoring_recipe_id = :scoring_recipe_id
  and loss.reason is null
