-- What a run that failed did for another: documents by tool and stage, under the other's recipes.
select work.tool, work.stage, work.documents
from run_work work
join run_tools theirs on theirs.run_id = work.run_id and theirs.tool = work.tool
join run_tools ours on ours.run_id = :run_id and ours.tool = work.tool
where work.run_id = :failed_run_id
  and case work.stage
          when 'filter' then theirs.filter_recipe_id = ours.filter_recipe_id
          when 'sample' then theirs.sampling_recipe_id = ours.sampling_recipe_id
          when 'execute' then theirs.execution_recipe_id = ours.execution_recipe_id
          when 'score' then theirs.scoring_recipe_id = ours.scoring_recipe_id
          else theirs.placebo_recipe_id = ours.placebo_recipe_id
      end
order by work.tool, work.stage
