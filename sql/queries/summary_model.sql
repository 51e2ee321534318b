-- The model that a run trained on its release.
select model_id from run_models where run_id = :run_id and not without_calls
