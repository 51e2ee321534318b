-- The calls, texts and sampled placebos of a run by tool and by what they save: what a threshold keeps is the sum from its bucket on.
select tool, bucket, calls, texts, releasable_calls, placebos
from reduction_histogram
where run_id = :run_id
order by tool, bucket
