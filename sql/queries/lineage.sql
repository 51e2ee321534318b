-- What OpenLineage is told of a task.

-- name: rows
-- Rows that the run's tool stages wrote themselves, by stage; `tool` null: of all tools.
select stage, sum(rows_written)::bigint as rows
from micro_batches
where run_id = :run_id and tool = coalesce(cast(:tool as text), tool)
group by stage

-- name: scores
select count(*) as rows from evaluation_scores where run_id = :run_id and suite = coalesce(cast(:suite as text), suite)

-- name: checks
select check_name, severity, success from quality_results where run_id = :run_id and subject = :subject order by check_name
