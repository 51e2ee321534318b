-- The calls of a run that have a result and losses and the smallest ids, in their order.
select loss.call_id, loss.document_id, loss.result
from members_beyond(:corpus_id, :at_version, :below_ordinal, :base_version, :base_ordinal, :reads_record) member
join call_losses loss
    on loss.scoring_recipe_id = :scoring_recipe_id and loss.document_id = member.variant_id
   and loss.result is not null and (loss.reason is null or loss.reason = 'pruned_below')
order by loss.call_id, loss.document_id
limit :calls
