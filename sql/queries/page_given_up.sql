-- Texts of a run that a stage has given up, by tool, stage and reason.
select tool, stage, reason, count(*) as documents
from run_failed_documents
where run_id = :run_id
group by tool, stage, reason
order by tool, stage, reason
