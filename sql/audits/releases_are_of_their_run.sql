-- fail: the run that made a release, with the model and recipes of its definition
-- release: changed dataset_releases
-- remedy: Restore the row from a backup.
select case when is_its_run then release_id || ' definition' else release_id end as place,
       format('run %s, started at %s', run_id, date_trunc('second', started_at)) as found
from (
    select release.release_id, run.run_id, run.started_at,
           exists (
               select from run_releases made
               where made.run_id = release.run_id
                 and (made.release_id = release.release_id or made.released_at > release.created_at - interval '4 days'))
           -- The run that made it was registered as its maker in one transaction.
           and not exists (
               select from run_releases made
               where made.release_id = release.release_id and made.released_at = release.created_at and made.run_id <> release.run_id)
               as is_its_run,
           release.definition ->> 'model' = run.model_identity
           and not exists (
               select from jsonb_array_elements(release.definition -> 'tools') part
               where not exists (
                   select from run_tools rt
                   where rt.run_id = release.run_id and rt.tool = part.value ->> 'tool'
                     and (rt.scoring_recipe_id = part.value ->> 'scoring_recipe_id' or not is_one_chain(rt))))
               as is_its_definition
    from dataset_releases release
    join annotation_runs run using (run_id)
    where release.release_id = any(cast(:release_ids as text[]))
) release
where not is_its_run or not is_its_definition
