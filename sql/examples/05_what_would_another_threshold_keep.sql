-- What would another threshold keep?
-- All scored calls of the newest run in steps of half a nat; "calls_from_here_up" is what a threshold at the step's start would keep.
select tool,
       floor(loss_reduction / 0.5) * 0.5 as nats_saved_from,
       count(*) as calls,
       sum(count(*)) over (partition by tool order by floor(loss_reduction / 0.5) desc) as calls_from_here_up
from scored_calls
where run_id = (select run_id from annotation_runs order by started_at desc limit 1)
group by tool, floor(loss_reduction / 0.5)
order by tool, nats_saved_from desc;
