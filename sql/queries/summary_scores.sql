-- The scores of the model that a run trained, calling tools as readily as it was evaluated, beside the model that it was made from.
with newest as (
    select distinct on (suite, subset, metric, variant) suite, subset, metric, variant, inputs, score
    from evaluation_scores
    where run_id = :run_id and variant in ('base', 'with_tools')
    order by suite, subset, metric, variant, call_start_rank desc, evaluated_at desc
)
select concat_ws(' ', ours.suite, nullif(ours.subset, ours.suite)) as name, ours.metric, ours.inputs, ours.score, base.score as base_score
from newest ours
left join newest base on base.suite = ours.suite and base.subset = ours.subset and base.metric = ours.metric and base.variant = 'base'
where ours.variant = 'with_tools'
order by ours.suite, ours.subset, ours.metric
