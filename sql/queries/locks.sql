-- Locks and limits of transactions and sessions.

-- name: session
-- Wait at most so many seconds until this session holds the name; held until the end of the session.
with before as materialized (
    select current_setting('lock_timeout') as lock_timeout,
           set_config('lock_timeout', (:seconds * 1000)::bigint::text, true)
),
held as materialized (
    select lock_timeout, pg_advisory_lock(hashtextextended('toolformer ' || cast(:name as text), 0))
        from before
)
select set_config('lock_timeout', lock_timeout, true) from held

-- name: statement_time_limit
-- Limits the statements that follow in this transaction, as 2000ms.
select set_config('statement_timeout', :milliseconds, true)

-- name: name
-- Wait until no other transaction holds this name, however long that takes; held until the transaction ends.
with before as materialized (
    select current_setting('lock_timeout') as lock_timeout, set_config('lock_timeout', '0', true)
),
held as materialized (
    select lock_timeout, pg_advisory_xact_lock(hashtextextended('toolformer ' || cast(:name as text), 0))
        from before
)
select set_config('lock_timeout', lock_timeout, true) from held

-- name: shared_name
-- As locks.name, but other transactions may hold the name like this, too: it keeps out those that hold it by
-- locks.name.
with before as materialized (
    select current_setting('lock_timeout') as lock_timeout, set_config('lock_timeout', '0', true)
),
held as materialized (
    select lock_timeout, pg_advisory_xact_lock_shared(hashtextextended('toolformer ' || cast(:name as text),
        0)) from before
)
select set_config('lock_timeout', lock_timeout, true) from held

-- name: try_session
-- Whether this session now holds the name; held until the end of the session.
select pg_try_advisory_lock(hashtextextended('toolformer ' || cast(:name as text), 0)) as locked

-- name: lock_time_limit
-- Limits the waits for locks of this transaction, as 2000ms.
select set_config('lock_timeout', :limit, true)

-- name: holders
-- The sessions that keep a session waiting, and wait for none themselves. A role sees of another role's
-- session who it is, not what it does.
with recursive blocking as (
    select unnest(pg_blocking_pids(:process)) as process
    union
    select unnest(pg_blocking_pids(process)) from blocking
)
select session.pid as process, session.usename as user_name, coalesce(session.application_name, '') as name,
       extract(epoch from clock_timestamp() - session.xact_start)::integer as transaction_seconds,
       case
           -- A session that is at work, but for a COPY, waits for its client only to send it an answer.
           when session.wait_event_type = 'Client' then
               extract(epoch from clock_timestamp() - greatest(session.query_start,
                   session.state_change))::integer
       end as silent_seconds,
       session.usename = current_user and session.application_name like 'toolformer%' as is_ours,
       case
           -- It may have begun long ago, and go on all the same.
           when session.wait_event_type = 'Client' and session.state = 'active' then
               format('%s, %s bytes', session.query_start, coalesce(copied.bytes_processed, 0))
       end as progress
from blocking
join pg_stat_activity session on session.pid = blocking.process
left join pg_stat_progress_copy copied on copied.pid = session.pid
where cardinality(pg_blocking_pids(session.pid)) = 0
order by session.xact_start, session.pid

-- name: end_session
select pg_terminate_backend(:process)
