-- The runs of a scope, with their tools and recipes, as far as these are one chain; a run without tools has one row without.
select run.run_id, run.corpus_id, run.state, rt.tool, rt.tool_version, rt.reads_record, rt.filter_recipe_id, rt.sampling_recipe_id,
       rt.execution_recipe_id, rt.scoring_recipe_id, rt.placebo_recipe_id
from annotation_runs run
left join run_tools rt on rt.run_id = run.run_id and is_one_chain(rt)
where :scope = 'all'
   or (:scope = 'corpus' and run.corpus_id = :scope_id)
   or (:scope = 'run' and run.run_id = :scope_id)
order by run.started_at, run.run_id, rt.tool
