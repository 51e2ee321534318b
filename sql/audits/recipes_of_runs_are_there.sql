-- fail: the recipes that runs name
-- run: lost recipes
-- remedy: Start a run with the same choices, which writes it again, or restore the row from a backup.
select used.recipe_id as place, format('no row of %s of %s', used.stage, used.tool) as found
from (
    select distinct rt.tool, named.stage, named.recipe_id
    from run_tools rt
    cross join stages_of(rt) named
    where rt.run_id = any(cast(:run_ids as text[])) and named.recipe_id is not null
) used
where not exists (select from recipes known where known.recipe_id = used.recipe_id)
