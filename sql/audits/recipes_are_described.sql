-- fail: each recipe of the tool described in `recipes` for its stage and tool
-- tool: checked_recipes
-- remedy: Start a run with the same choices, which describes them again, or restore the rows from a backup.
select stage, recipe_id, described
from {batch}
where not described
