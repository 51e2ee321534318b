-- How many calls are kept, by tool and threshold?
-- The paper's Table 2 for the newest run: calls that save at least so many nats, and the texts that hold them; and the share of them that
-- results of other calls would save as well, with its 95 % interval.
select tool, threshold, is_keep_threshold, calls, texts, releasable_calls, false_discovery_rate, rate_low, rate_high
from threshold_counts
where run_id = (select run_id from annotation_runs order by started_at desc limit 1)
order by tool, threshold;
