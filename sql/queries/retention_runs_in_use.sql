-- Runs whose recipes are kept: unfinished ones, finished ones whose numbers are not stored yet, those with a release that is not withdrawn,
-- those that ended within so many days, and the newest successful run of each corpus, model and schedule (null: by hand), which the next
-- night continues, but for schedules whose file is gone (schedules: null where schedules are not known here).
select run_id
from annotation_runs run
where state = 'running'
   or numbers_stored_at is null
   or coalesce(finished_at, started_at) > now() - make_interval(days => :older_than_days)
   or exists (
       select
       from run_releases made
       join dataset_releases release on release.release_id = made.release_id
       where made.run_id = run.run_id and release.withdrawn_at is null
   )
   or (schedule is null or coalesce(schedule = any(cast(:schedules as text[])), true))
       and not exists (
           select
           from annotation_runs newer
           where newer.corpus_id = run.corpus_id
             and newer.model_identity is not distinct from run.model_identity
             and newer.schedule is not distinct from run.schedule
             and newer.state = 'success'
             and (run.state <> 'success' or newer.started_at > run.started_at)
       )
order by run_id
