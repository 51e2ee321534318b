insert into run_tools
    (run_id, tool, filter_recipe_id, sampling_recipe_id, execution_recipe_id, scoring_recipe_id, tool_version, keep_threshold,
     prune_below, reads_record, tau_information)
values
    (:run_id, :tool, :filter_recipe_id, :sampling_recipe_id, :execution_recipe_id, :scoring_recipe_id, :tool_version,
     :keep_threshold, :prune_below, :reads_record, :tau_information)
on conflict do nothing
