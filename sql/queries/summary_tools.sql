-- What a run did itself for each of its tools.
select work.tool, jsonb_object_agg(work.stage, work.documents) as done_by_stage,
       coalesce(max(progress.total) filter (where work.stage = 'filter'), 0) as documents,
       coalesce(sum(work.seconds) filter (
           where work.stage in ('sample', 'score', 'placebo') or work.stage = 'execute' and work.tool = any (cast(:device_tools as text[]))), 0)
           as device_seconds
from run_work work
join annotation_progress progress using (run_id, tool, stage)
where work.run_id = :run_id
group by work.tool
order by work.tool
