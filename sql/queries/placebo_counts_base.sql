-- The newest earlier run whose counts of documents those of a tool of a run may start from: the same placebos and keep rule, over the same
-- corpus. Deleted with the counts where a text was forgotten since; no row where there is none.
select base.run_id as base_run_id, base.corpus_version as counted_version, coalesce(base.ordinal_limit, 2147483647) as counted_ordinal
from run_tools asked
join annotation_runs run on run.run_id = asked.run_id
join run_tools base_tool
    on base_tool.tool = asked.tool and base_tool.scoring_recipe_id = asked.scoring_recipe_id
   and base_tool.placebo_recipe_id = asked.placebo_recipe_id and base_tool.keep_threshold = asked.keep_threshold
   and base_tool.prune_below = asked.prune_below and base_tool.reads_record = asked.reads_record
   and base_tool.tau_information is not distinct from asked.tau_information
join annotation_runs base
    on base.run_id = base_tool.run_id and base.corpus_id = run.corpus_id and base.corpus_version <= run.corpus_version
where asked.run_id = :run_id
  and asked.tool = :tool
  and base.run_id <> asked.run_id
  and exists (select from placebo_counts counted where counted.run_id = base.run_id and counted.tool = asked.tool)
  and exists (
      select from placebo_rates rate
      where rate.run_id = base.run_id and rate.tool = asked.tool and rate.placebo_recipe_id = asked.placebo_recipe_id)
order by base.corpus_version desc, base.ordinal_limit is not distinct from run.ordinal_limit desc, base.started_at desc
limit 1
