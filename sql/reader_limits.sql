-- What a read-only role could do besides reading, taken from it: functions that every role may call. Run by a superuser, in the
-- database of the factory and after each restore of it: `make up` does that for its own Postgres; elsewhere
--     psql --dbname=postgresql://superuser@host/toolformer --file=sql/reader_limits.sql
-- The owner of the database keeps these functions. docs/operations.md says what a reader can still do.
do $$
declare
    called regprocedure;
    owner name := (select pg_get_userbyid(datdba) from pg_database where datname = current_database());
begin
    for called in
        select oid from pg_proc
        where pronamespace = 'pg_catalog'::regnamespace
          and (
              proname like 'pg\_advisory\_%'  -- locks, which the stages wait for
              or proname like 'pg\_try\_advisory\_%'
              or proname in (  -- large objects: data outside tables, that anybody may make
                  'lo_creat', 'lo_create', 'lo_from_bytea', 'lo_import', 'lo_export', 'lo_open', 'lo_close', 'lo_get', 'lo_put',
                  'lo_unlink', 'lo_truncate', 'lo_truncate64', 'lo_lseek', 'lo_lseek64', 'lo_tell', 'lo_tell64', 'loread', 'lowrite'
              )
              or proname in ('pg_logical_emit_message', 'pg_notify', 'pg_export_snapshot')  -- writes to the log, and to other sessions
          )
    loop
        execute format('revoke execute on function %s from public', called);
        execute format('grant execute on function %s to %I', called, owner);
    end loop;
end
$$;
