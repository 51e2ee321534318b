-- The first of two that count at once is waited for: the second would insert the same rows.
select 1 from run_tools where run_id = :run_id and tool = :tool for no key update;
delete from placebo_counts where run_id = :run_id and tool = :tool;
delete from placebo_rates where run_id = :run_id and tool = :tool
