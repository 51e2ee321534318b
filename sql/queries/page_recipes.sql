-- What the stages of a tool were asked to do: what each recipe's id is the hash of.
select recipe_id, stage, definition
from recipes
where recipe_id = any (cast(:recipe_ids as text[]))
order by array_position(array['filter', 'sample', 'execute', 'score', 'placebo'], stage)
