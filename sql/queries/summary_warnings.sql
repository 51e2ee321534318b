-- The checks of a run that did not succeed.
select subject, check_name, severity, message
from quality_results
where run_id = :run_id and not success
order by severity, subject, check_name
