-- The tools of a run, with what their numbers are counted by.
select tool, filter_recipe_id, sampling_recipe_id, execution_recipe_id, scoring_recipe_id, placebo_recipe_id, keep_threshold, prune_below,
       tau_information, reads_record
from run_tools
where run_id = :run_id
order by tool
