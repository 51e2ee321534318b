-- How many calls are kept, by tool and threshold?
-- The paper's Table 2 for a run: calls that save at least so many nats, and the texts that hold them; and the share of them that
-- results of other calls would save as well, with its 95 % interval.
-- About the newest run that finished; another one: toolformer-ops sql --run=night-1 ..., or psql --set=run=night-1.
\if :{?run} \else \set run '' \endif
select tool, threshold, is_keep_threshold, calls, texts, releasable_calls, false_discovery_rate, rate_low, rate_high
from threshold_counts
where run_id = run_or_newest(:'run')
order by tool, threshold;
