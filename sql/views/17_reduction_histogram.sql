create view reduction_histogram as
select run_id, tool, bucket, bucket / 20.0::double precision as at_least, calls, texts, releasable_calls, placebos
from finished_run_reductions
join stored_runs using (run_id)
union all
select rt.run_id, rt.tool, counted.bucket, counted.bucket / 20.0::double precision, counted.calls, counted.texts, counted.releasable_calls,
       counted.placebos
from run_tools rt
join annotation_runs run using (run_id)
cross join lateral counted_histogram(rt, run, null) counted
where not exists (select from stored_runs stored where stored.run_id = rt.run_id);
comment on view reduction_histogram is 'The calls of each tool of each run by what they save, in intervals of 0.05 nats from prune_below on: summed from a bucket upwards they are what the run''s keep rule would keep at the threshold at_least. Counts are exact.';
comment on column reduction_histogram.bucket is 'Number of the interval: loss reductions from bucket / 20 nats to below (bucket + 1) / 20. A bucket without calls and placebos has no row.';
comment on column reduction_histogram.at_least is 'Its lower end, nats.';
call inherit_comments('reduction_histogram', 'finished_run_reductions');
