-- Limits of the roles that people and pages sign in as; views that migrations make again are given back by
-- it. Run by a superuser, in the database of the factory, after each restore of it and if a role has changed
-- its own settings: `make up` does that for its own Postgres; elsewhere
--     psql --dbname=postgresql://superuser@host/toolformer --file=sql/reader_limits.sql
-- docs/operations.md says what a reader can still do.
do $$
declare
    limited record;
    called regprocedure;
    owner name := (select pg_get_userbyid(datdba) from pg_database where datname = current_database());
begin
    -- 1. Settings that a role has given itself, which every role may do, are taken back.
    for limited in
        select roles.rolname, databases.datname
        from pg_db_role_setting settings
        join pg_roles roles on roles.oid = settings.setrole
        left join pg_database databases on databases.oid = settings.setdatabase
        where roles.rolname in ('toolformer_reader', 'toolformer_page', 'toolformer_reviewer',
            'toolformer_analyst')
    loop
        execute case
            when limited.datname is null then format('alter role %I reset all', limited.rolname)
            else format('alter role %I in database %I reset all', limited.rolname, limited.datname)
        end;
    end loop;
    -- 2. The limits. A session may change all settings but temp_file_limit, which is a superuser's; the next
    --    one has them again.
    for limited in
        select rolname from pg_roles
        where rolname in ('toolformer_reader', 'toolformer_page', 'toolformer_reviewer', 'toolformer_analyst')
    loop
        execute format('alter role %I connection limit 20', limited.rolname);
        -- of each process, for sorting
        execute format('alter role %I set temp_file_limit = %L', limited.rolname, '4GB');
        if limited.rolname = 'toolformer_reviewer' then
            execute format('alter role %I set statement_timeout = %L', limited.rolname, '10s');
        elsif limited.rolname = 'toolformer_analyst' then
            -- What they make without naming a schema is made in their own.
            execute format('alter role %I set search_path = analysts, public', limited.rolname);
            execute format('alter role %I set statement_timeout = %L', limited.rolname, '30min');
            execute format('alter role %I set idle_in_transaction_session_timeout = %L', limited.rolname,
                '5min');
            execute format('alter role %I set max_parallel_workers_per_gather = 1', limited.rolname);
            -- A migration that makes a view of theirs again gives it back.
            execute format('grant %I to %I', limited.rolname, owner);
        else
            execute format('alter role %I set default_transaction_read_only = on', limited.rolname);
            execute format('alter role %I set statement_timeout = %L', limited.rolname, '5min');
            execute format('alter role %I set idle_in_transaction_session_timeout = %L', limited.rolname,
                '5min');
            execute format('alter role %I set max_parallel_workers_per_gather = 1', limited.rolname);
        end if;
    end loop;
    -- 3. Functions that every role may call, and that do more than read. The owner of the database keeps
    --    them.
    for called in
        select oid from pg_proc
        where pronamespace = 'pg_catalog'::regnamespace
          and (
              proname like 'pg\_advisory\_%'  -- locks, which the stages wait for
              or proname like 'pg\_try\_advisory\_%'
              or proname in (  -- large objects: data outside tables, that anybody may make
                  'lo_creat', 'lo_create', 'lo_from_bytea', 'lo_import', 'lo_export', 'lo_open', 'lo_close',
                      'lo_get', 'lo_put',
                  'lo_unlink', 'lo_truncate', 'lo_truncate64', 'lo_lseek', 'lo_lseek64', 'lo_tell',
                      'lo_tell64', 'loread', 'lowrite'
              )
              -- writes to the log, and to other sessions
              or proname in ('pg_logical_emit_message', 'pg_notify', 'pg_export_snapshot')
          )
    loop
        execute format('revoke execute on function %s from public', called);
        execute format('grant execute on function %s to %I', called, owner);
    end loop;
end
$$;
