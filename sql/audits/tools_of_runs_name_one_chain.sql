-- fail: recipes of a tool of a run that are there, of this tool, each built on the one before
-- run: changed run_tools
-- remedy: Restore the row from a backup; the tool's rows of this run are not looked at, and not repaired, before.
select format('%s of %s', rt.tool, rt.run_id) as place,
       (select string_agg(recipe_id, ' -> ' order by step) from stages_of(rt)) as found
from run_tools rt
where rt.run_id = any(cast(:run_ids as text[]))
  and not is_one_chain(rt)
  -- A recipe that is lost is found as that, unless others were built on it: then another one is named here.
  and exists (
      select from recipes recipe
      where recipe.recipe_id in (select recipe_id from stages_of(rt) where step > 1)
        and (recipe.tool <> rt.tool
             or recipe.parent_recipe_id not in (select recipe_id from stages_of(rt) where step < 5)
             or (recipe.stage, recipe.recipe_id) not in (select stage, recipe_id from stages_of(rt) where recipe_id is not null)))
