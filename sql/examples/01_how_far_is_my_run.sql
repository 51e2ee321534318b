-- How far is my run?
-- The newest run, by tool and stage, in documents. Asked again, it shows what has been committed since.
select run_id, tool, stage, done, total, round(100.0 * done / nullif(total, 0)) as percent
from annotation_progress
where run_id = (select run_id from annotation_runs order by started_at desc limit 1)
order by tool, step;
