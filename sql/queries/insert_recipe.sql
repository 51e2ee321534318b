insert into recipes (recipe_id, stage, tool, parent_recipe_id, definition)
values (:recipe_id, :stage, :tool, :parent_recipe_id, cast(:definition as jsonb))
on conflict do nothing
