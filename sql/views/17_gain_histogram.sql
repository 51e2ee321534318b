create view gain_histogram as
select rt.run_id, rt.tool, stored.bucket,
    stored.bucket / cast(buckets_a_unit(rt.keep_rule) as double precision) as at_least, stored.calls,
       stored.texts, stored.releasable_calls, stored.placebos
from finished_run_gains stored
join stored_runs using (run_id)
join run_tools rt using (run_id, tool)
union all
select rt.run_id, rt.tool, counted.bucket,
    counted.bucket / cast(buckets_a_unit(rt.keep_rule) as double precision), counted.calls, counted.texts,
    counted.releasable_calls,
       counted.placebos
from run_tools rt
join annotation_runs run using (run_id)
cross join lateral counted_histogram(rt, run, null) counted
where not exists (select from stored_runs stored where stored.run_id = rt.run_id);
comment on view gain_histogram is
    'The calls of each tool of each run by what they gain, in intervals of 0.05 nats (0.01 by the keep '
    'rule probability) from prune_below on: summed from a bucket upwards they are what the run''s keep '
    'rule would keep at the threshold at_least. Counts are exact.';
comment on column gain_histogram.bucket is
    'Number of the interval: gains from at_least on. A bucket without calls and placebos has no row.';
comment on column gain_histogram.at_least is 'Its lower end, nats.';
call inherit_comments('gain_histogram', 'finished_run_gains');
