-- Unfinished runs that work by one of these recipes.
select distinct run.run_id
from annotation_runs run
join run_tools tool on tool.run_id = run.run_id
where run.state = 'running'
  and array[tool.filter_recipe_id, tool.sampling_recipe_id, tool.execution_recipe_id, tool.scoring_recipe_id, tool.placebo_recipe_id]
      && cast(:recipe_ids as text[])
order by run.run_id
