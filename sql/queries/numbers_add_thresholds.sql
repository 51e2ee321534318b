-- The rows of threshold_counts of a tool of a run: those of its base, and what counted_documents adds and subtracts.
insert into finished_run_thresholds (run_id, tool, threshold, calls, texts, releasable_calls)
with by_document as (
    select base.threshold, document.document_id, document.sign,
           count(*) as calls, count(*) filter (where not call.input_only_after) as releasable_calls
    from finished_run_thresholds base
    cross join counted_documents document
    join call_losses loss
        on loss.scoring_recipe_id = :scoring_recipe_id and loss.document_id = document.document_id
       and run_keeps(loss.reason, loss.loss_reduction, base.threshold,
           :placebo_recipe_id, loss.document_id, loss.call_id, cast(:tau_information as double precision))
    join candidate_calls call
        on call.sampling_recipe_id = :sampling_recipe_id and call.document_id = loss.document_id and call.call_id = loss.call_id
    where base.run_id = :base_run_id and base.tool = :tool
    group by base.threshold, document.document_id, document.sign
),
counted as (
    select threshold, sum(sign * calls) as calls, sum(sign) as texts, sum(sign * releasable_calls) as releasable_calls
    from by_document
    group by threshold
)
select :run_id, base.tool, base.threshold, base.calls + coalesce(counted.calls, 0), base.texts + coalesce(counted.texts, 0),
       base.releasable_calls + coalesce(counted.releasable_calls, 0)
from finished_run_thresholds base
left join counted using (threshold)
where base.run_id = :base_run_id and base.tool = :tool
