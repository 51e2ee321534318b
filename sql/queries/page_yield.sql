-- The funnel of a run: what each stage counted, and the reasons for which something was lost there.
select tool, step, stage, reason, is_loss, count
from yield_by_stage
where run_id = :run_id
order by step, is_loss, tool, count desc, reason
