-- How many calls of a run save at least so much, by tool and threshold.
select tool, threshold, is_keep_threshold, calls, texts, releasable_calls, placebos, placebos_scored, false_discovery_rate, rate_low, rate_high
from threshold_counts
where run_id = :run_id
order by tool, threshold
