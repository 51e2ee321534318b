-- By tool of a run, its sampled placebos, and how many calls one of them represents: table placebo_rates has the formula. No row for a tool without
-- placebos, and before its check has counted them.
select distinct rate.tool, rate.placebos_scored, rate.calls_sampled / nullif(pool.sample_share, 0) / nullif(rate.placebos_scored, 0) as calls_a_placebo
from placebo_rates rate
join placebo_pools pool using (placebo_recipe_id)
where rate.run_id = :run_id
