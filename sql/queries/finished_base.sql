-- The version and ordinal up to which all these recipes have finished a corpus, of those that leave the fewest members of the given version:
-- an ordinal limit as high as the run's first, then the newest. No row where there is none. Rows that were dropped since do not count, nor
-- what one run, which checks its work again, has finished itself.
select finished.version, finished.ordinal_limit
from finished_work finished
join recipes recipe on recipe.recipe_id = finished.recipe_id
where finished.recipe_id = any(cast(:recipe_ids as text[]))
  and finished.corpus_id = :corpus_id
  and finished.version <= :at_version
  and finished.run_id is distinct from :but_of_run
  and finished.finished_at > coalesce(recipe.dropped_at, '-infinity')
group by finished.version, finished.ordinal_limit
having count(*) = cardinality(cast(:recipe_ids as text[]))
order by least(finished.ordinal_limit, :below_ordinal) desc, finished.version desc
limit 1
