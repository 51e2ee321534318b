-- What would another threshold keep?
-- A run at thresholds from 0 to 2 nats in steps of half a nat, as far down as the run computed all calls; needs no GPU.
-- About the newest run that finished; another one: toolformer-ops sql --run=night-1 ..., or psql --set=run=night-1.
\if :{?run} \else \set run '' \endif
with thresholds as materialized (
    select t.run_id, t.tool, t.keep_threshold, cast(step * 0.5 as double precision) as threshold
    from run_tools t
    cross join generate_series(0, 4) as step
    where t.run_id = run_or_newest(:'run')
      and step * 0.5 >= t.prune_below
)
select a.tool,
       a.threshold,
       a.threshold = a.keep_threshold as is_keep_threshold,
       count(k.call_id) as calls,
       count(distinct k.document_id) as texts
from thresholds a
left join lateral kept_calls_at(a.run_id, a.tool, a.threshold) k on true
group by a.tool, a.threshold, a.keep_threshold
order by a.tool, a.threshold;
