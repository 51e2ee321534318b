-- Runs whose recipes are kept: unfinished ones, those with a release that is not withdrawn, the newest successful run of each corpus and
-- model (the next night uses its recipes again), and those that ended within so many days.
select run_id
from annotation_runs run
where state = 'running'
   or coalesce(finished_at, started_at) > now() - make_interval(days => :older_than_days)
   or exists (
       select
       from run_releases made
       join dataset_releases release on release.release_id = made.release_id
       where made.run_id = run.run_id and release.withdrawn_at is null
   )
   or not exists (
       select
       from annotation_runs newer
       where newer.corpus_id = run.corpus_id
         and newer.model_identity is not distinct from run.model_identity
         and newer.state = 'success'
         and (run.state <> 'success' or newer.started_at > run.started_at)
   )
order by run_id
