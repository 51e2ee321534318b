-- The four recipes of one tool in one run, and whether each is described in `recipes` for this stage and tool.
select
    recipe.stage,
    recipe.recipe_id,
    case when described.recipe_id is null then 0 else 1 end as described
from (values
    ('filter', current_setting('toolformer.filter_recipe_id')),
    ('sample', current_setting('toolformer.sampling_recipe_id')),
    ('execute', current_setting('toolformer.execution_recipe_id')),
    ('score', current_setting('toolformer.scoring_recipe_id'))
) as recipe (stage, recipe_id)
left join recipes described
    on described.recipe_id = recipe.recipe_id
   and described.stage = recipe.stage
   and described.tool = current_setting('toolformer.tool')
