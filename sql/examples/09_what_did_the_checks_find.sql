-- What did the quality checks find?
-- The checks of the newest run that did not succeed; "fail" stopped the tool or the release, "warn" did not.
select subject, check_name, severity, message, observed
from quality_results
where run_id = (select run_id from annotation_runs order by started_at desc limit 1)
  and not success
order by severity, subject, check_name;
