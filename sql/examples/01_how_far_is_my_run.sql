-- How far is my run?
-- By tool and stage, in documents. Asked again, it shows what has been committed since.
-- About the newest run; another one: toolformer-ops sql --run=night-1 ..., or psql --set=run=night-1.
\if :{?run} \else \set run '' \endif
select run_id, tool, stage, done, total, round(100.0 * done / nullif(total, 0)) as percent
from annotation_progress
where run_id = run_or_newest(coalesce(nullif(:'run', ''), (select run_id from annotation_runs order by started_at desc limit 1)))
order by tool, step;
