-- All rows of a tool in a run are there and passed their checks.
insert into finished_work (recipe_id, corpus_id, version, ordinal_limit, run_id)
select recipe_id, :corpus_id, :at_version, :below_ordinal, :run_id
from unnest(cast(:recipe_ids as text[])) as recipe (recipe_id)
order by recipe_id
on conflict (recipe_id, corpus_id, version, ordinal_limit) do update set run_id = excluded.run_id, finished_at = excluded.finished_at
