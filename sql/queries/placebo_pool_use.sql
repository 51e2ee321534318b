-- The recipe of a run's placebos.
update run_tools set placebo_recipe_id = :placebo_recipe_id
where run_id = :run_id and tool = :tool and placebo_recipe_id is distinct from :placebo_recipe_id
