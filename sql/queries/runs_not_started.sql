-- The newest runs that ended before they started, or the one of this id.
select run_id, problem, ended_at
from runs_not_started
where :run_id = '' or run_id = :run_id
order by ended_at desc, run_id
limit :at_most
