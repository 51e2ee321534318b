-- Ends of runs, and who was told.

-- name: due
-- The runs of schedules that ended recently and for which a notification is outstanding.
with ended as (
    select run_id, state, finished_at as ended_at, true as has_started, null as problem
    from annotation_runs
    where schedule is not null and state <> 'running'
    union all
    select run_id, 'failed', ended_at, false, problem
    from runs_not_started
)
select run_id, state, ended_at, has_started, problem
from ended
where starts_with(run_id, :prefix)
  and ended_at >= :since
  and not exists (
      select from notifications told
      where told.run_id = ended.run_id and told.ended_at = ended.ended_at and told.connection_id = ''
  )
order by ended_at, run_id

-- name: told
-- Nothing if it is known already; another process that tells the same waits for this transaction.
insert into notifications (run_id, ended_at, connection_id)
values (:run_id, :ended_at, :connection_id)
on conflict do nothing
