select threshold, placebos, calls, documents from placebo_counts where run_id = :run_id and tool = :tool order by threshold, placebos, calls
