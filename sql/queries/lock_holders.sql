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
