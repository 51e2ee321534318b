select count(*) as rows from evaluation_scores where run_id = :run_id and suite = coalesce(cast(:suite as text), suite)
