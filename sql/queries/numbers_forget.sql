-- Delete the stored numbers of a run, so that the views compute them.
delete from finished_run_thresholds where run_id = :run_id;
delete from finished_run_progress where run_id = :run_id;
delete from finished_run_reductions where run_id = :run_id;
delete from finished_run_yield where run_id = :run_id;
delete from finished_run_work where run_id = :run_id;
update annotation_runs set numbers_stored_at = null where run_id = :run_id
