-- The four recipes of one tool in one run, and whether each is described in `recipes` for this stage and tool.
select
    recipe.stage,
    recipe.recipe_id,
    case when described.recipe_id is null then 0 else 1 end as described
from run_tools registered
cross join lateral (values
    ('filter', registered.filter_recipe_id), ('sample', registered.sampling_recipe_id),
    ('execute', registered.execution_recipe_id), ('score', registered.scoring_recipe_id)
) as recipe (stage, recipe_id)
left join recipes described
    on described.recipe_id = recipe.recipe_id
   and described.stage = recipe.stage
   and described.tool = registered.tool
where registered.run_id = current_setting('toolformer.run_id')
  and registered.tool = current_setting('toolformer.tool')
