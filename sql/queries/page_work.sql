-- What a run did itself by tool and stage, from its micro-batches: documents and seconds, and the seconds of the last :recent_seconds. What
-- is left is counted in tokens, of the filter in documents: what one took lately, in this run or else under its recipe.
with own as (
    select tool, stage, sum(documents) as documents, sum(seconds) as seconds,
           sum(case when stage = 'filter' then documents else tokens end) as units,
           sum(seconds) filter (where committed_at > now() - make_interval(secs => :recent_seconds)) as recent_seconds,
           min(committed_at - make_interval(secs => seconds)) as began_at
    from micro_batches
    where run_id = :run_id
    group by tool, stage
)
select rt.tool, stages.step, stages.stage, coalesce(own.documents, 0)::bigint as documents, coalesce(own.seconds, 0) as seconds,
       coalesce(own.recent_seconds, 0) as recent_seconds, extract(epoch from now() - own.began_at)::double precision as age,
       coalesce(own.seconds / nullif(own.units, 0), (
           select sum(lately.seconds) / nullif(sum(lately.units), 0)
           from (
               select seconds, case when stage = 'filter' then documents else tokens end as units from micro_batches
               where recipe_id = stages.recipe_id and (stage = 'filter' or tokens is not null)
               order by committed_at desc limit 50
           ) lately
       )) as seconds_a_unit
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
