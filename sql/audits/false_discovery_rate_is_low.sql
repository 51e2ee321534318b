-- warn: a false-discovery rate of at most 0.2
-- tool: checked_rates
-- remedy: A higher threshold, or a bound tau_information, keeps fewer calls by chance.
select tool, false_discovery_rate, rate_low, rate_high, placebos_scored
from {batch}
where false_discovery_rate > 0.2
