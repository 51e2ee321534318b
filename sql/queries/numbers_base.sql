-- The run whose stored numbers those of a tool of a run follow from: the newest with the same recipes and keep rule, all of whose documents
-- were done. None of its rows was deleted since.
select base.run_id, base.corpus_version, base.ordinal_limit
from annotation_runs run
join run_tools tool on tool.run_id = run.run_id and tool.tool = :tool
join run_tools base_tool
    on base_tool.tool = tool.tool and base_tool.scoring_recipe_id = tool.scoring_recipe_id
   and base_tool.execution_recipe_id = tool.execution_recipe_id and base_tool.sampling_recipe_id = tool.sampling_recipe_id
   and base_tool.filter_recipe_id = tool.filter_recipe_id and base_tool.keep_threshold = tool.keep_threshold
   and base_tool.prune_below = tool.prune_below and base_tool.reads_record = tool.reads_record
   and base_tool.tau_information is not distinct from tool.tau_information
   and base_tool.placebo_recipe_id is not distinct from tool.placebo_recipe_id
join annotation_runs base
    on base.run_id = base_tool.run_id and base.corpus_id = run.corpus_id and base.corpus_version <= run.corpus_version
join stored_runs stored on stored.run_id = base.run_id
where run.run_id = :run_id
  and base.run_id <> run.run_id
  and (select bool_and(done = total) and bool_or(stage = 'placebo') = has_placebos(run.parameters, tool.placebo_recipe_id)
       from finished_run_progress where run_id = base.run_id and tool = :tool)
  and not exists (select from forgotten_documents where coalesce(removed_at, 'infinity') >= stored.stored_at)
  and not exists (
      select from recipes
      where recipe_id in (
                tool.filter_recipe_id, tool.sampling_recipe_id, tool.execution_recipe_id, tool.scoring_recipe_id, tool.placebo_recipe_id)
        and dropped_at >= stored.stored_at)
order by (base.ordinal_limit is not distinct from run.ordinal_limit) desc, base.corpus_version desc, stored.stored_at desc
limit 1
