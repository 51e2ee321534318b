-- The release of the run before, where the corpus is at the same version and no row was written since of which a release is made.
select earlier.run_id, made.left_out, release.release_id, release.uri, release.manifest_sha256, release.definition
from annotation_runs run
join annotation_runs earlier
    on earlier.run_id = :before_run_id
   and earlier.corpus_id = run.corpus_id
   and earlier.corpus_version = run.corpus_version
   and earlier.ordinal_limit is not distinct from run.ordinal_limit
join run_releases made on made.run_id = earlier.run_id
join dataset_releases release on release.release_id = made.release_id
where run.run_id = :run_id
  and release.withdrawn_at is null
  and not exists (
      select
      from run_tools ours
      cross join lateral unnest(array[
          ours.filter_recipe_id, ours.sampling_recipe_id, ours.execution_recipe_id, ours.scoring_recipe_id, ours.placebo_recipe_id
      ]) as used (recipe_id)
      join micro_batches batch on batch.recipe_id = used.recipe_id
      where ours.run_id = run.run_id and batch.committed_at >= made.released_at
  )
