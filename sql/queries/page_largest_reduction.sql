-- The most that a call of a recipe saves, nats; null where none is scored.
select max(loss_reduction) as largest
from call_losses
where scoring_recipe_id = :scoring_recipe_id and reason is null
