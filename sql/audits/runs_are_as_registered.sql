-- fail: the parameters, corpus, version and start of a run as it was registered under its name
-- run: changed annotation_runs
-- remedy: Restore the row from a backup. A copy of a run under another name is deleted with what refers to it.
select run.run_id as place, 'a row with another hash' as found
from annotation_runs run
where run.run_id = any(cast(:run_ids as text[])) and run.registered_hash <> registration_hash(run)
