-- The role and the schema of analysts: toolformer_analyst reads all, makes tables and views in the schema
-- analysts and temporary tables anywhere, and writes nothing of the factory. Views there on ours are made
-- again by migrations (storage/postgres/dependent_views.py). Runs at every migration, behind reader_role.sql,
-- which lets the role read.
-- NOLOGIN if it is made here; `make up` gives it a password, elsewhere: alter role toolformer_analyst login
-- password '...'.
do $$
declare
    reading name;
begin
    if not exists (select from pg_roles where rolname = 'toolformer_analyst') then
        return;  -- reader_role.sql has said so
    end if;
    begin
        create schema if not exists analysts;
        comment on schema analysts is 'Tables and views of analysts. Migrations make views on ours again.';
        grant usage, create on schema analysts to toolformer_analyst;
        execute format('grant temporary on database %I to toolformer_analyst', current_database());
    exception
        when insufficient_privilege then
            raise warning 'schema analysts is missing, or is not of %: its owner grants usage and create to toolformer_analyst', current_user;
            return;
    end;
    foreach reading in array array['toolformer_reader', 'toolformer_page'] loop
        if exists (select from pg_roles where rolname = reading) then
            execute format('grant usage on schema analysts to %I', reading);
            -- What analysts make there is for dashboards, too; that the owner is one of them,
            -- sql/reader_limits.sql says.
            if pg_has_role('toolformer_analyst', 'member') then
                execute format('alter default privileges for role toolformer_analyst in schema analysts grant select on tables to %I', reading);
            end if;
        end if;
    end loop;
end
$$;
