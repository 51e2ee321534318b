select run_id, tool, filter_recipe_id, sampling_recipe_id, execution_recipe_id, scoring_recipe_id, tool_version, keep_threshold,
       prune_below, reads_record, placebo_recipe_id, tau_information
from run_tools
where run_id = :run_id and tool = :tool
