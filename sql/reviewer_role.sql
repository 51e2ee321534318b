-- The role by which the page of Airflow writes judgements: it may add rows to that one table, and read and
-- change nothing. Runs at every migration. NOLOGIN if it is made here; `make up` gives it a password,
-- elsewhere: alter role toolformer_reviewer login password '...'.
do $$
begin
    if not exists (select from pg_roles where rolname = 'toolformer_reviewer') then
        begin
            create role toolformer_reviewer nologin;
        exception
            -- another database of this server made it just now
            when duplicate_object or unique_violation then null;
            when insufficient_privilege then
                raise warning 'role toolformer_reviewer is missing and % may not create it: ask for it, then migrate again', current_user;
        end;
    end if;
    if exists (select from pg_roles where rolname = 'toolformer_reviewer')
        and to_regclass('judgements') is not null then
        execute format('grant usage on schema %I to toolformer_reviewer', current_schema);
        grant insert on judgements to toolformer_reviewer;
    end if;
end
$$;
