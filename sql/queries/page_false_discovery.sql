-- Of a tool's sampled placebos in a run those that the run's keep rule would keep at :threshold, over all; and how many calls with a result
-- the sample stands for. No row where the run's rates are not counted (table placebo_rates, which has the formula).
with rate as (
    select placebos_scored, calls_sampled, placebo_recipe_id
    from placebo_rates
    where run_id = :run_id and tool = :tool
    order by threshold limit 1
)
select rate.placebos_scored, rate.calls_sampled / nullif(pool.sample_share, 0) as calls_with_result, (
    select count(*)
    from call_placebos placebo
    where placebo.run_id = :run_id and placebo.tool = :tool and placebo.is_sampled and placebo.reduction >= :threshold
      and (cast(:tau_information as double precision) is null or placebo.placebo_information >= cast(:tau_information as double precision))
) as placebos
from rate
join placebo_pools pool using (placebo_recipe_id)
