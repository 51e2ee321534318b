-- Row to check: the false-discovery rate of a tool in a run at its own threshold (placebo_rates; no row with fewer than :fewest_placebos placebos), and its bound.
create temporary table checked_rates as
select rate.tool, round(cast(rate.false_discovery_rate as numeric), 3) as false_discovery_rate, round(cast(rate.rate_low as numeric), 3) as rate_low,
       round(cast(rate.rate_high as numeric), 3) as rate_high, rate.placebos_scored,
       cast(:max_false_discovery_rate as double precision) as max_false_discovery_rate
from placebo_rates rate
where rate.run_id = :run_id and rate.tool = :tool and rate.threshold = :keep_threshold and rate.placebos_scored >= :fewest_placebos
