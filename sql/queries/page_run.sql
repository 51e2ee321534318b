-- A run with its tools, in the order in which they were chosen; none for a run that only finetunes.
select run.run_id, run.state, run.corpus_id, run.corpus_uri, run.corpus_version, run.ordinal_limit, run.schedule, run.model_identity,
       run.code_version, run.image, run.parameters, run.estimate, run.cost, run.started_at, run.finished_at, run.previous_run_id,
       exists (select from stored_runs stored where stored.run_id = run.run_id) as has_stored_numbers,
       coalesce((
           select jsonb_agg(to_jsonb(chosen) order by array_position(run.tools, chosen.tool), chosen.tool)
           from (
               select tool, keep_threshold, prune_below, reads_record, filter_recipe_id, sampling_recipe_id, execution_recipe_id,
                      scoring_recipe_id, tool_version, placebo_recipe_id, tau_information,
                      (select cost.cost_threshold from call_costs cost where cost.run_id = run_tools.run_id and cost.tool = run_tools.tool)
               from run_tools
               where run_tools.run_id = run.run_id
           ) chosen
       ), '[]') as tools
from annotation_runs run
where run.run_id = :run_id
