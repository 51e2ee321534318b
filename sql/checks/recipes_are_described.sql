-- fail: each recipe of the tool described in `recipes` for its stage and tool
select stage, recipe_id, described
from {batch}
where not described
