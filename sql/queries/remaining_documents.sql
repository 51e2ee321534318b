-- How far each stage of a run is, by tool: done and total documents.
select tool, stage, done, total, total - done as remaining
from annotation_progress
where run_id = :run_id
order by tool, step
