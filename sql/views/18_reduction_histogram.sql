create view reduction_histogram as
select stored.run_id, stored.tool, stored.bucket, stored.bucket / 20.0::double precision as at_least,
       stored.calls, stored.texts, stored.releasable_calls, stored.placebos
from finished_run_reductions stored
join stored_runs using (run_id)
union all
select rt.run_id, rt.tool, counted.bucket, counted.bucket / 20.0::double precision, counted.calls, counted.texts, counted.releasable_calls,
       counted.placebos
from run_tools rt
cross join lateral (
    -- Within the lateral query the recipes are constants, so that Postgres reads only their partitions.
    with members as materialized (
        select variant_id as document_id from run_tool_documents where run_id = rt.run_id and tool = rt.tool
    ),
    reached as materialized (
        select loss.document_id, loss.loss_reduction, call.input_only_after
        from call_losses loss
        join candidate_calls call
            on call.sampling_recipe_id = rt.sampling_recipe_id and call.document_id = loss.document_id and call.call_id = loss.call_id
        join members on members.document_id = loss.document_id
        where loss.scoring_recipe_id = rt.scoring_recipe_id
          and run_keeps(loss.reason, loss.loss_reduction, rt.prune_below,
              rt.placebo_recipe_id, loss.document_id, loss.call_id, rt.tau_information)
    ),
    best as (
        select max(loss_reduction) as loss_reduction from reached group by document_id
    ),
    found as (
        select reduction_bucket(loss_reduction) as bucket, count(*) as calls, 0 as texts,
               count(*) filter (where not input_only_after) as releasable_calls, 0 as placebos
        from reached
        group by 1
        union all
        select reduction_bucket(loss_reduction), 0, count(*), 0, 0 from best group by 1
        union all
        select reduction_bucket(placebo.reduction), 0, 0, 0, count(*)
        from placebo_losses placebo
        join members on members.document_id = placebo.document_id
        where placebo.placebo_recipe_id = rt.placebo_recipe_id
          and placebo.is_sampled
          and placebo.reduction >= rt.prune_below
          and (rt.tau_information is null or placebo.placebo_information >= rt.tau_information)
        group by 1
    )
    select bucket, sum(calls)::bigint as calls, sum(texts)::bigint as texts, sum(releasable_calls)::bigint as releasable_calls,
           sum(placebos)::bigint as placebos
    from found
    group by bucket
) counted
where not exists (
    select from finished_run_reductions stored join stored_runs using (run_id) where stored.run_id = rt.run_id and stored.tool = rt.tool
);
comment on view reduction_histogram is 'The calls of each tool of each run by what they save, in intervals of 0.05 nats from prune_below on: summed from a bucket upwards they are what the run''s keep rule would keep at the threshold at_least. Counts are exact.';
comment on column reduction_histogram.run_id is 'The run.';
comment on column reduction_histogram.tool is 'The tool''s name.';
comment on column reduction_histogram.bucket is 'Number of the interval: loss reductions from bucket / 20 nats to below (bucket + 1) / 20. A bucket without calls and placebos has no row.';
comment on column reduction_histogram.at_least is 'Its lower end, nats.';
comment on column reduction_histogram.calls is 'Calls that save so much, and carry tau_information where the run has such a bound.';
comment on column reduction_histogram.texts is 'Texts whose best such call saves so much.';
comment on column reduction_histogram.releasable_calls is 'Of calls those whose input does not occur only after them.';
comment on column reduction_histogram.placebos is 'Sampled placebos, results of other calls in a call''s place, that save so much, and carry tau_information where the run has such a bound.';
