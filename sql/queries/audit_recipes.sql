-- Recipes with their definitions, and what runs name as recipes that are not there.
select recipe_id, stage, tool, parent_recipe_id, definition, true as is_there
from recipes
where cast(:recipe_ids as text[]) is null or recipe_id = any(cast(:recipe_ids as text[]))
union all
select distinct used.recipe_id, used.stage, used.tool, null, cast(null as jsonb), false
from (
    select tool, unnest(array['filter', 'sample', 'execute', 'score', 'placebo']) as stage,
           unnest(array[filter_recipe_id, sampling_recipe_id, execution_recipe_id, scoring_recipe_id, placebo_recipe_id]) as recipe_id
    from run_tools
) used
where used.recipe_id is not null
  and not exists (select from recipes known where known.recipe_id = used.recipe_id)
  and (cast(:recipe_ids as text[]) is null or used.recipe_id = any(cast(:recipe_ids as text[])))
order by recipe_id
