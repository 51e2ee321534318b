-- How much of one tool's work in one run is judged, kept and releasable. Calls that are never released (input only after) count as kept,
-- pruned ones as not kept. Counted are the documents that joined or left since an earlier run of the same recipe and threshold whose check
-- passed (:counted_version, :counted_ordinal; 0 and 0 where there is none), and added to what that check counted.
with changed as (
    select case when :reads_record then variant_id else document_id end as variant_id, case when has_joined then 1 else -1 end as sign
    from differing_members(:corpus_id, :at_version, :below_ordinal, :counted_version, :counted_ordinal)
),
by_document as (
    select
        changed.sign, loss.document_id,
        count(*) as judged_calls,
        count(*) filter (
            where run_keeps(loss.reason, loss.loss_reduction, :keep_threshold,
                  :placebo_recipe_id, loss.document_id, loss.call_id, cast(:tau_information as double precision))) as kept_calls
    from changed
    join call_losses loss on loss.document_id = changed.variant_id
    where loss.scoring_recipe_id = :scoring_recipe_id
      and (loss.reason is null or loss.reason = 'pruned_below')
    group by changed.sign, loss.document_id
),
counted as (
    select
        coalesce(sum(sign * judged_calls), 0) as judged_calls,
        coalesce(sum(sign * kept_calls), 0) as kept_calls,
        coalesce(sum(sign) filter (where kept_calls > 0), 0) as kept_texts
    from by_document
),
unreleasable as (
    select coalesce(sum(changed.sign), 0) as calls
    from changed
    join candidate_calls call on call.document_id = changed.variant_id
    join call_losses loss on loss.document_id = call.document_id and loss.call_id = call.call_id
    where call.sampling_recipe_id = :sampling_recipe_id
      and call.input_only_after
      and loss.scoring_recipe_id = :scoring_recipe_id
      and run_keeps(loss.reason, loss.loss_reduction, :keep_threshold,
          :placebo_recipe_id, loss.document_id, loss.call_id, cast(:tau_information as double precision))
)
select
    cast(:judged_calls + counted.judged_calls as bigint) as judged_calls,
    cast(:kept_calls + counted.kept_calls as bigint) as kept_calls,
    cast(:releasable_calls + counted.kept_calls - unreleasable.calls as bigint) as releasable_calls,
    cast(:kept_texts + counted.kept_texts as bigint) as kept_texts
from counted
cross join unreleasable
