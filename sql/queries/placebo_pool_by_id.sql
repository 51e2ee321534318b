select placebos, sample_share, calls, documents from placebo_pools where placebo_recipe_id = :placebo_recipe_id
