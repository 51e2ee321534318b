-- How many calls of a run save at least so much, by tool and threshold.
select tool, threshold, is_keep_threshold, calls, texts, releasable_calls
from threshold_counts
where run_id = :run_id
order by tool, threshold
