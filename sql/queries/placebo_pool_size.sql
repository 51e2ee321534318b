-- How many documents a run has, and how many of its calls have a result and losses.
select count(distinct member.variant_id) as documents, count(loss.call_id) as calls
from members_beyond(:corpus_id, :at_version, :below_ordinal, :base_version, :base_ordinal, :reads_record) member
left join call_losses loss
    on loss.scoring_recipe_id = :scoring_recipe_id and loss.document_id = member.variant_id
   and loss.result is not null and (loss.reason is null or loss.reason = 'pruned_below')
