-- The false-discovery rate of each tool of a run at the tool's own threshold, where it is known.
select rate.tool, rate.threshold, rate.calls, rate.false_discovery_rate, rate.rate_low, rate.rate_high, rate.placebos_scored
from run_tools rt
join placebo_rates rate on rate.run_id = rt.run_id and rate.tool = rt.tool and rate.threshold = rt.keep_threshold
where rt.run_id = :run_id and rate.false_discovery_rate is not null
order by rate.tool
