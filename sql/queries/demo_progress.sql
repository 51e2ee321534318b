-- How far each tool of a run is; no rows before the run is registered.
select tool, stage, done, total, tokens_done, tokens
from annotation_progress
where run_id = :run_id
order by tool, step
