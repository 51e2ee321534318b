delete from placebo_counts where run_id = :run_id and tool = :tool;
delete from placebo_rates where run_id = :run_id and tool = :tool
