-- The roles that read each table and view, those to come included: toolformer_reader for people and
-- dashboards, toolformer_page for the run page and `toolformer-ops sql`, toolformer_analyst for people who
-- build views of their own (analysts_role.sql). Runs at every migration. NOLOGIN if they are made here; `make
-- up` gives them passwords, elsewhere: alter role toolformer_reader login password '...'.
do $$
declare
    reading name;
begin
    foreach reading in array array['toolformer_reader', 'toolformer_page', 'toolformer_analyst'] loop
        if not exists (select from pg_roles where rolname = reading) then
            begin
                execute format('create role %I nologin', reading);
            exception
                -- another database of this server made it just now
                when duplicate_object or unique_violation then null;
                when insufficient_privilege then
                    raise warning 'role % is missing and % may not create it: ask for it, then migrate again',
                        reading, current_user;
            end;
        end if;
        if exists (select from pg_roles where rolname = reading) then
            execute format('grant usage on schema %I to %I', current_schema, reading);
            execute format('grant select on all tables in schema %I to %I', current_schema, reading);
            execute format('alter default privileges in schema %I grant select on tables to %I',
                current_schema, reading);
        end if;
    end loop;
end
$$;
