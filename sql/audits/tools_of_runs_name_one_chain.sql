-- fail: recipes of a tool of a run that are there, of this tool, each built on the one before
-- run: changed run_tools
-- remedy: Restore the row from a backup; the tool's rows of this run are not looked at, and not repaired, before.
select format('%s of %s', rt.tool, rt.run_id) as place,
       concat_ws(' -> ', rt.filter_recipe_id, rt.sampling_recipe_id, rt.execution_recipe_id, rt.scoring_recipe_id, rt.placebo_recipe_id) as found
from run_tools rt
where rt.run_id = any(cast(:run_ids as text[]))
  and not is_one_chain(rt)
  -- A recipe that is lost is found as that, unless others were built on it: then another one is named here.
  and exists (
      select from recipes recipe
      where recipe.recipe_id in (rt.sampling_recipe_id, rt.execution_recipe_id, rt.scoring_recipe_id, rt.placebo_recipe_id)
        and (recipe.tool <> rt.tool
             or recipe.parent_recipe_id not in (rt.filter_recipe_id, rt.sampling_recipe_id, rt.execution_recipe_id, rt.scoring_recipe_id)
             or (recipe.stage, recipe.recipe_id) not in (
                 ('sample', rt.sampling_recipe_id), ('execute', rt.execution_recipe_id), ('score', rt.scoring_recipe_id),
                 ('placebo', rt.placebo_recipe_id))))
