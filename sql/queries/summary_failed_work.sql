-- What runs of the same schedule did for a run that ended without success since the run before it: documents by tool and stage.
select work.tool, work.stage, sum(work.documents)::bigint as documents
from annotation_runs run
join annotation_runs failed
    on failed.schedule = run.schedule and failed.corpus_id = run.corpus_id and failed.run_id <> run.run_id
left join annotation_runs before on before.run_id = cast(:before_run_id as text)
join run_tools ours on ours.run_id = run.run_id
join run_tools theirs on theirs.run_id = failed.run_id and theirs.tool = ours.tool
join run_work work on work.run_id = failed.run_id and work.tool = ours.tool
where run.run_id = :run_id
  and failed.state <> 'success'
  and failed.started_at <= run.started_at
  and (before.run_id is null or failed.started_at >= before.started_at)
  and case work.stage
          when 'filter' then theirs.filter_recipe_id = ours.filter_recipe_id
          when 'sample' then theirs.sampling_recipe_id = ours.sampling_recipe_id
          when 'execute' then theirs.execution_recipe_id = ours.execution_recipe_id
          when 'score' then theirs.scoring_recipe_id = ours.scoring_recipe_id
          else theirs.placebo_recipe_id = ours.placebo_recipe_id
      end
group by work.tool, work.stage
order by work.tool, work.stage
