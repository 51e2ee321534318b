-- fail: the end of a run whose numbers are stored
-- run: changed annotation_runs
-- remedy: Set it again, as Airflow shows it: `toolformer-ops stage finish-run --run RUN --state success` (or failed).
select run_id as place, format('state %s, ended %s', state, coalesce(cast(finished_at as text), 'never')) as found
from annotation_runs
where run_id = any(cast(:run_ids as text[]))
  and (state = 'running' and numbers_stored_at is not null or (state = 'running') <> (finished_at is null))
