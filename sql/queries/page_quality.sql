-- What the quality checks of a run found; those that did not pass first.
select subject, check_name, severity, success, message, checked_at
from quality_results
where run_id = :run_id
order by success, severity, subject, check_name
