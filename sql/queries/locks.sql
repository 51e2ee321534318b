-- Locks and limits of transactions and sessions.

-- name: session
-- Wait until this session holds the name; held until the end of the session.
select pg_advisory_lock(hashtextextended('toolformer ' || cast(:name as text), 0))

-- name: statement_time_limit
-- Limits the statements that follow in this transaction, as 2000ms.
select set_config('statement_timeout', :milliseconds, true)

-- name: name
-- Wait until no other transaction holds this name; held until the transaction ends.
select pg_advisory_xact_lock(hashtextextended('toolformer ' || cast(:name as text), 0))

-- name: try_session
-- Whether this session now holds the name; held until the end of the session.
select pg_try_advisory_lock(hashtextextended('toolformer ' || cast(:name as text), 0)) as locked

-- name: time_limits
-- Limits of this transaction, in seconds: of the wait for a lock, and of a statement; 0 is none.
select set_config('lock_timeout', (:lock_seconds * 1000)::integer::text, true),
       set_config('statement_timeout', (:statement_seconds * 1000)::integer::text, true)

-- name: holders
-- Other sessions that hold locks on tables or views of this database, those that have held them longest first.
select session.pid, session.usename as user_name, session.application_name,
       coalesce(extract(epoch from now() - session.xact_start), 0)::integer as seconds,
       string_agg(distinct held.relation::regclass::text, ', ') as relations
from pg_locks held
join pg_stat_activity session on session.pid = held.pid
join pg_class relation on relation.oid = held.relation
where held.granted
  and held.pid <> pg_backend_pid()
  and held.database = (select oid from pg_database where datname = current_database())
  and relation.relnamespace = current_schema()::regnamespace
  and relation.relkind in ('r', 'p', 'v')
group by session.pid, session.usename, session.application_name, session.xact_start
order by session.xact_start
