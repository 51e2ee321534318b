-- The numbers of a run as the views show them, in one order.
select 'finished_run_thresholds' as relation, tool, cast(threshold as text) as name,
       jsonb_build_array(calls, texts, releasable_calls) as numbers
from threshold_counts where run_id = :run_id
union all
select 'finished_run_reductions', tool, cast(bucket as text), jsonb_build_array(calls, texts, releasable_calls, placebos)
from reduction_histogram where run_id = :run_id
union all
select 'finished_run_progress', tool, stage, jsonb_build_array(done, total) from annotation_progress where run_id = :run_id
union all
select 'finished_run_yield', tool, stage || ' ' || reason, jsonb_build_array(count, documents)
from yield_by_stage
-- Which document was the first to ask an input is no property of the data.
where run_id = :run_id and reason not in ('executed', 'from_cache')
order by relation, tool, name
