-- A recipe and all that are built on it.
with recursive later as (
    select recipe_id, stage, tool, parent_recipe_id, definition from recipes where recipe_id = :recipe_id
    union all
    select next.recipe_id, next.stage, next.tool, next.parent_recipe_id, next.definition
    from recipes next
    join later on next.parent_recipe_id = later.recipe_id
)
select recipe_id, stage, tool, parent_recipe_id, definition from later
