-- For which reasons calls of these recipes were not scored. Finds one reason after the other in the index call_losses_not_scored, and
-- pruned_below, which is not in it, by a look for one such call.
with recursive recipes as (
    select unnest(cast(:scoring_recipe_ids as text[])) as recipe_id
),
found as (
    select recipe_id, (
        select min(reason) from call_losses
        where scoring_recipe_id = recipe_id and reason is not null and reason <> 'pruned_below'
    ) as reason
    from recipes
    union all
    select found.recipe_id, (
        select min(loss.reason) from call_losses loss
        where loss.scoring_recipe_id = found.recipe_id and loss.reason > found.reason and loss.reason <> 'pruned_below'
    )
    from found
    where found.reason is not null
)
select distinct reason from found where reason is not null
order by reason
