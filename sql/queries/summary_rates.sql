-- How many of the calls that a run keeps of each tool it would keep by chance.
select tool, calls, placebos_scored, false_discovery_rate, rate_low, rate_high
from threshold_counts
where run_id = :run_id and is_keep_threshold
order by tool
