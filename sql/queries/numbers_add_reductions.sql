-- The rows of reduction_histogram of a tool of a run: those of its base, and what counted_documents adds and subtracts.
insert into finished_run_reductions (run_id, tool, bucket, calls, texts, releasable_calls, placebos)
with reached as materialized (
    select document.document_id, document.sign, loss.loss_reduction, call.input_only_after
    from counted_documents document
    join call_losses loss
        on loss.scoring_recipe_id = :scoring_recipe_id and loss.document_id = document.document_id
       and run_keeps(loss.reason, loss.loss_reduction, :prune_below,
           :placebo_recipe_id, loss.document_id, loss.call_id, cast(:tau_information as double precision))
    join candidate_calls call
        on call.sampling_recipe_id = :sampling_recipe_id and call.document_id = loss.document_id and call.call_id = loss.call_id
),
best as (
    select sign, max(loss_reduction) as loss_reduction from reached group by document_id, sign
),
found as (
    select bucket, calls, texts, releasable_calls, placebos from finished_run_reductions where run_id = :base_run_id and tool = :tool
    union all
    select reduction_bucket(loss_reduction), sign, 0, case when input_only_after then 0 else sign end, 0 from reached
    union all
    select reduction_bucket(loss_reduction), 0, sign, 0, 0 from best
    union all
    select reduction_bucket(placebo.reduction), 0, 0, 0, document.sign
    from counted_documents document
    join placebo_losses placebo on placebo.document_id = document.document_id
    where placebo.placebo_recipe_id = cast(:placebo_recipe_id as text)
      and placebo.is_sampled
      and placebo.reduction >= :prune_below
      and (cast(:tau_information as double precision) is null or placebo.placebo_information >= :tau_information)
)
select :run_id, :tool, bucket, sum(calls), sum(texts), sum(releasable_calls), sum(placebos)
from found
group by bucket
having sum(calls) <> 0 or sum(placebos) <> 0
