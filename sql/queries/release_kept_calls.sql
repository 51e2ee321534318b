-- The kept calls of one tool in texts_to_choose_from that could be released. The recipes are constants, so that only their partitions are read.
insert into choosable_calls
select
    chosen.document_id, call.position_char, call.call_id, loss.document_id, :tool, call.sampling_recipe_id,
    :execution_recipe_id, loss.scoring_recipe_id, loss.loss_reduction
from texts_to_choose_from chosen
join call_losses loss on loss.document_id = case when :reads_record then chosen.variant_id else chosen.document_id end
join candidate_calls call on call.document_id = loss.document_id and call.call_id = loss.call_id
where loss.scoring_recipe_id = :scoring_recipe_id
  and call.sampling_recipe_id = :sampling_recipe_id
  and run_keeps(loss.reason, loss.loss_reduction, :keep_threshold,
      :placebo_recipe_id, loss.document_id, loss.call_id, cast(:tau_information as double precision))
  and not call.input_only_after
