-- The paper's Table 2 for a run: calls and texts by tool and threshold.
select tool, threshold, is_keep_threshold, calls, texts, placebos_scored, false_discovery_rate, rate_low, rate_high
from threshold_counts
where run_id = :run_id
order by tool, threshold
