-- Where do calls get lost, and why?
-- Every reason of the newest run for which a paragraph, a sample or a call went no further, the most frequent first in each stage.
select tool, stage, reason, count
from yield_by_stage
where run_id = (select run_id from annotation_runs order by started_at desc limit 1)
  and is_loss
  and count > 0
order by tool, step, count desc, reason;
