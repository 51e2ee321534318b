-- Of each recipe the newest version of each corpus that it has finished.
select distinct on (recipe_id, corpus_id) recipe_id, corpus_id, version, ordinal_limit
from finished_work
where recipe_id = any(cast(:recipe_ids as text[]))
order by recipe_id, corpus_id, version desc, ordinal_limit desc
