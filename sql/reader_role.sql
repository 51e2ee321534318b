-- The role of people and dashboards: reads every table and view, those to come included. Runs at every migration.
-- NOLOGIN where it is made here; `make up` gives it a password, elsewhere: alter role toolformer_reader login password '...'.
do $$
begin
    if not exists (select from pg_roles where rolname = 'toolformer_reader') then
        begin
            create role toolformer_reader nologin;
        exception
            when duplicate_object or unique_violation then null;  -- another database of this server made it just now
            when insufficient_privilege then
                raise warning 'role toolformer_reader is missing and % may not create it: ask for it, then migrate again', current_user;
        end;
    end if;
    if exists (select from pg_roles where rolname = 'toolformer_reader') then
        execute format('grant usage on schema %I to toolformer_reader', current_schema);
        execute format('grant select on all tables in schema %I to toolformer_reader', current_schema);
        execute format('alter default privileges in schema %I grant select on tables to toolformer_reader', current_schema);
    end if;
end
$$;
