-- What OpenLineage is told of a task.

-- name: rows
-- Rows that the stages of the run's tools wrote themselves, by stage.
select stage, sum(rows_written)::bigint as rows
from micro_batches
where run_id = :run_id
group by stage

-- name: scores
select count(*) as rows from evaluation_scores where run_id = :run_id
    and suite = coalesce(cast(:suite as text), suite)

-- name: checks
-- The outcome of each check of the run's release, or of its tools: a check of tools holds if it holds for
-- each.
select check_name, severity, bool_and(success) as success
from quality_results
where run_id = :run_id and (subject = 'release') = cast(:is_release as boolean)
group by check_name, severity
order by check_name
