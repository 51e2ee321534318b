delete from runs_not_started where run_id = :run_id
