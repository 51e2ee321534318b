-- The tools of a run in the order they were chosen: recipes, and the checks they failed.
select
    chosen.tool,
    registered.sampling_recipe_id,
    registered.execution_recipe_id,
    registered.scoring_recipe_id,
    registered.keep_threshold,
    registered.placebo_recipe_id,
    registered.tau_information,
    cost.seconds,
    cost.nats_per_second,
    cost.price,
    cost.price_unit,
    cost.nats_per_price,
    rate.false_discovery_rate,
    rate.rate_low,
    rate.rate_high,
    rate.placebos_scored,
    array(
        select result.check_name
        from quality_results result
        where result.run_id = :run_id
          and result.subject = chosen.tool
          and result.severity = 'fail'
          and not result.success
        order by result.check_name
    ) as failed_checks
from annotation_runs run
cross join lateral unnest(run.tools) with ordinality as chosen (tool, place)
left join run_tools registered on registered.run_id = run.run_id and registered.tool = chosen.tool
left join call_costs cost on cost.run_id = registered.run_id and cost.tool = registered.tool
left join placebo_rates rate
    on rate.run_id = registered.run_id and rate.tool = registered.tool and rate.threshold = registered.keep_threshold
where run.run_id = :run_id
order by chosen.place
