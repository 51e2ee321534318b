-- What a run did itself by tool and stage, from its micro-batches: documents and seconds, and the seconds of the last :recent_seconds. Where
-- a stage has no micro-batch of the run yet, what a document took lately under its recipe.
with own as (
    select tool, stage, sum(documents) as documents, sum(seconds) as seconds,
           sum(seconds) filter (where committed_at > now() - make_interval(secs => :recent_seconds)) as recent_seconds,
           min(committed_at) as first_at, max(committed_at) as last_at
    from micro_batches
    where run_id = :run_id
    group by tool, stage
)
select rt.tool, stages.step, stages.stage, coalesce(own.documents, 0)::bigint as documents, coalesce(own.seconds, 0) as seconds,
       coalesce(own.recent_seconds, 0) as recent_seconds, own.first_at, own.last_at,
       coalesce(own.seconds / nullif(own.documents, 0), (
           select sum(lately.seconds) / nullif(sum(lately.documents), 0)
           from (
               select documents, seconds from micro_batches
               where recipe_id = stages.recipe_id
               order by committed_at desc limit 50
           ) lately
       )) as seconds_a_document
from run_tools rt
join annotation_runs run using (run_id)
cross join lateral (
    values (1, 'filter', rt.filter_recipe_id), (2, 'sample', rt.sampling_recipe_id), (3, 'execute', rt.execution_recipe_id),
           (4, 'score', rt.scoring_recipe_id), (5, 'placebo', rt.placebo_recipe_id)
) stages (step, stage, recipe_id)
left join own on own.tool = rt.tool and own.stage = stages.stage
where rt.run_id = :run_id
  and (stages.stage <> 'placebo' or has_placebos(run.parameters, rt.placebo_recipe_id))
order by rt.tool, stages.step
