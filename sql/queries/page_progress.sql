-- How far each stage of a run is, in documents.
select tool, step, stage, done, total
from annotation_progress
where run_id = :run_id
order by tool, step
