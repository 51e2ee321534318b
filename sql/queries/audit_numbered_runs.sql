-- Finished runs whose stored numbers can be computed again: all of their documents were done, and nothing was deleted since. Of runs over the
-- same corpus by the same recipes the newest: the numbers of the others are its base, and what changed.
select distinct on (run.corpus_id, recipes.ids) run.run_id
from annotation_runs run
join stored_runs stored using (run_id)
cross join lateral (
    select array_agg(recipe_id order by recipe_id) as ids
    from (
        select unnest(array[filter_recipe_id, sampling_recipe_id, execution_recipe_id, scoring_recipe_id, placebo_recipe_id]) as recipe_id
        from run_tools
        where run_tools.run_id = run.run_id
    ) used
) recipes
where run.run_id = any(cast(:run_ids as text[]))
  and recipes.ids is not null
  and not exists (select from finished_run_progress where finished_run_progress.run_id = run.run_id and done <> total)
  -- Numbers from before migration 0052 have no stage placebo.
  and not exists (
      select from run_tools tool
      where tool.run_id = run.run_id
        and has_placebos(run.parameters, tool.placebo_recipe_id)
        and not exists (
            select from finished_run_progress progress
            where progress.run_id = tool.run_id and progress.tool = tool.tool and progress.stage = 'placebo'))
  and not exists (select from forgotten_documents where coalesce(removed_at, 'infinity') >= stored.stored_at)
  and not exists (select from recipes dropped where dropped.recipe_id = any(recipes.ids) and dropped.dropped_at >= stored.stored_at)
  and not exists (select from run_releases made where made.run_id = run.run_id and made.released_at > stored.stored_at)
order by run.corpus_id, recipes.ids, run.corpus_version desc, stored.stored_at desc
