-- The kept calls of one tool that could be released. The recipes are constants, so that only their partitions are read.
insert into choosable_calls
select
    member.document_id, call.position_char, call.call_id, member.variant_id, :tool, call.sampling_recipe_id,
    :execution_recipe_id, loss.scoring_recipe_id, loss.loss_reduction
from members_beyond(:corpus_id, :at_version, :below_ordinal, :base_version, :base_ordinal, :reads_record) member
join call_losses loss on loss.document_id = member.variant_id
join candidate_calls call on call.document_id = loss.document_id and call.call_id = loss.call_id
where loss.scoring_recipe_id = :scoring_recipe_id
  and call.sampling_recipe_id = :sampling_recipe_id
  and is_kept(loss.reason, loss.loss_reduction, :keep_threshold)
  and not call.input_only_after
