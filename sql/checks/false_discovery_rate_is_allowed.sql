-- fail: a false-discovery rate of at most the run's max_false_discovery_rate
select tool, false_discovery_rate, rate_low, rate_high, placebos_scored, max_false_discovery_rate
from {batch}
where false_discovery_rate > max_false_discovery_rate
