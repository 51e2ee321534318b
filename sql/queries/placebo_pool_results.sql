select source, call_id, document_id, result from placebo_pool_results where placebo_recipe_id = :placebo_recipe_id order by source
