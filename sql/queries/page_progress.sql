-- How far each stage of a run is, in documents, and in tokens while the run works.
select tool, step, stage, done, total, tokens_done, tokens
from annotation_progress
where run_id = :run_id
order by tool, step
