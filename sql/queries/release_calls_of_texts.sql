-- The chosen calls of texts with ids in (after, until], with all that is released of them.
select
    chosen.document_id, chosen.call_id, chosen.tool, chosen.position_char, chosen.sampling_recipe_id, chosen.scoring_recipe_id,
    call.call_input, call.position_probability,
    loss.result, loss.loss_without_call, loss.loss_without_result, loss.loss_with_result, loss.loss_without_call_full_context,
    loss.loss_reduction
from chosen_calls chosen
join candidate_calls call
    on call.sampling_recipe_id = chosen.sampling_recipe_id
   and call.call_id = chosen.call_id
join call_losses loss
    on loss.scoring_recipe_id = chosen.scoring_recipe_id
   and loss.call_id = chosen.call_id
where call.sampling_recipe_id = any (cast(:sampling_recipe_ids as text[]))  -- reads no other partition
  and loss.scoring_recipe_id = any (cast(:scoring_recipe_ids as text[]))
  and chosen.document_id > cast(:after as uuid)
  and chosen.document_id <= cast(:until as uuid)
order by chosen.document_id, chosen.position_char, chosen.call_id
