select threshold from placebo_rates where run_id = :run_id and tool = :tool and placebo_recipe_id = :placebo_recipe_id
