-- The runs of a scope, with their tools and recipes; a run without tools has one row without.
select run.run_id, run.corpus_id, run.state, tool.tool, tool.tool_version, tool.reads_record, tool.filter_recipe_id, tool.sampling_recipe_id,
       tool.execution_recipe_id, tool.scoring_recipe_id, tool.placebo_recipe_id
from annotation_runs run
left join run_tools tool on tool.run_id = run.run_id
where :scope = 'all'
   or (:scope = 'corpus' and run.corpus_id = :scope_id)
   or (:scope = 'run' and run.run_id = :scope_id)
order by run.started_at, run.run_id, tool.tool
