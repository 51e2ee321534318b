-- Rows to check: the four recipes of one tool in one run, and whether `recipes` describes each for its stage and tool.
create temporary table checked_recipes as
select recipe.stage, recipe.recipe_id, described.recipe_id is not null as described
from (values
    ('filter', :filter_recipe_id),
    ('sample', :sampling_recipe_id),
    ('execute', :execution_recipe_id),
    ('score', :scoring_recipe_id)
) as recipe (stage, recipe_id)
left join recipes described
    on described.recipe_id = recipe.recipe_id
   and described.stage = recipe.stage
   and described.tool = :tool
