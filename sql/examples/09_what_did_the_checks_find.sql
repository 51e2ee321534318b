-- What did the quality checks find?
-- The checks of a run that did not succeed; "fail" stopped the tool or the release, "warn" did not.
-- About the newest run that finished; another one: toolformer-ops sql --run=night-1 ..., or psql --set=run=night-1.
\if :{?run} \else \set run '' \endif
select subject, check_name, severity, message, observed
from quality_results
where run_id = run_or_newest(:'run')
  and not success
order by severity, subject, check_name;
