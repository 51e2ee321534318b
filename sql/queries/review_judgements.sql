-- The judgements of a release that count.
select reviewer, tool, call_id, is_placebo, verdict
from counted_judgements
where release_id = :release_id
order by tool, reviewer, call_id, is_placebo
