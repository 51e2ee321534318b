-- fail: a false-discovery rate of at most the run's max_false_discovery_rate
-- tool: checked_rates
-- remedy: The view threshold_counts shows what higher thresholds keep; max_false_discovery_rate is a choice of the run.
select tool, false_discovery_rate, rate_low, rate_high, placebos_scored, max_false_discovery_rate
from {batch}
where false_discovery_rate > max_false_discovery_rate
