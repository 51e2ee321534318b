-- The other runs of a schedule that nobody has closed.
select run_id from annotation_runs
where schedule = :schedule and run_id <> :run_id and state = 'running'
order by started_at
