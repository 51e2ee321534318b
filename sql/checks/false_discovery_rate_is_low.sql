-- warn: a false-discovery rate of at most 0.2
select tool, false_discovery_rate, rate_low, rate_high, placebos_scored
from {batch}
where false_discovery_rate > 0.2
