-- The newest earlier passed check of this recipe at this threshold whose counts kept_counts may start from; no row where there is
-- none.
select earlier.corpus_version as counted_version, finished.ordinal_limit as counted_ordinal,
       counted.judged_calls, counted.kept_calls, counted.releasable_calls, counted.kept_texts
from run_tools asked
join checked_yields counted on counted.tool = asked.tool
join annotation_runs earlier on earlier.run_id = counted.run_id
join finished_work finished
    on finished.recipe_id = asked.scoring_recipe_id
   and finished.corpus_id = earlier.corpus_id
   and finished.version = earlier.corpus_version
   and finished.ordinal_limit = coalesce(earlier.ordinal_limit, 2147483647)
join recipes recipe on recipe.recipe_id = asked.scoring_recipe_id
where asked.run_id = counted.run_id
  and asked.tool = :tool
  and asked.scoring_recipe_id = :scoring_recipe_id
  and asked.keep_threshold = :keep_threshold
  and asked.tau_information is not distinct from cast(:tau_information as double precision)
  and (asked.tau_information is null or asked.placebo_recipe_id is not distinct from :placebo_recipe_id)
  and counted.releasable_calls is not null
  and earlier.corpus_id = :corpus_id
  and earlier.corpus_version <= :at_version
  and finished.finished_at > coalesce(recipe.dropped_at, '-infinity')
order by earlier.corpus_version desc, earlier.ordinal_limit is not distinct from nullif(:below_ordinal, 2147483647) desc
limit 1
