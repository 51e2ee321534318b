update annotation_runs set state = :state, finished_at = now() where run_id = :run_id
