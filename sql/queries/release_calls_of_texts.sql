-- The calls of the release in texts with ids in (after, until]: the columns are the fields of release.format.ReleasedCall.
select
    chosen.document_id,
    cast(chosen.call_id as text) as call_id,
    chosen.tool,
    call.call_input as input,
    loss.result,
    chosen.position_char,
    call.position_probability,
    loss.loss_without_call,
    loss.loss_without_result,
    loss.loss_with_result,
    loss.loss_reduction,
    chosen.sampling_recipe_id,
    chosen.execution_recipe_id,
    chosen.scoring_recipe_id,
    loss.loss_without_call_full_context
from releasable_calls chosen
join candidate_calls call
    on call.sampling_recipe_id = chosen.sampling_recipe_id
   and call.document_id = chosen.variant_id
   and call.call_id = chosen.call_id
join call_losses loss
    on loss.scoring_recipe_id = chosen.scoring_recipe_id
   and loss.document_id = chosen.variant_id
   and loss.call_id = chosen.call_id
where call.sampling_recipe_id = any (cast(:sampling_recipe_ids as text[]))  -- reads no other partition
  and loss.scoring_recipe_id = any (cast(:scoring_recipe_ids as text[]))
  and chosen.left_out is null
  and chosen.document_id > cast(:after as uuid)
  and chosen.document_id <= cast(:until as uuid)
order by chosen.document_id, chosen.position_char, chosen.call_id
