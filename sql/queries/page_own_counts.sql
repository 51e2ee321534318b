-- What a run's own micro-batches counted, for a run whose funnel takes too long to count.
select batch.tool, case batch.stage when 'sample' then 2 when 'execute' then 3 when 'score' then 4 else 5 end as step, batch.stage,
       counted.name as reason, counts_a_loss(counted.name) as is_loss,
       sum(counted.count::bigint)::bigint as count
from micro_batches batch
cross join lateral jsonb_each_text(batch.counts) as counted (name, count)
where batch.run_id = :run_id and batch.stage <> 'filter'
group by batch.tool, batch.stage, counted.name
order by step, is_loss, batch.tool, count desc, reason
