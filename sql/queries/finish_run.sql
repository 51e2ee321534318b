-- Where the clock was set back meanwhile, the run took no time.
update annotation_runs
set state = :state, finished_at = greatest(now(), started_at), problem = nullif(:problem, '')
where run_id = :run_id
