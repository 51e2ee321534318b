-- The partitions of the stages' tables are in a schema of their own: \d of psql lists the tables, and not the part of
-- each recipe. Readers read through the tables, and need no rights on the schema.
do $$
declare
    partition name;
begin
    -- A superuser can have made it for an owner that may not create schemas in this database.
    if to_regnamespace('partitions') is null then
        create schema partitions;
        comment on schema partitions is 'The rows of each recipe, as partitions of the stages'' tables: read those tables instead.';
    end if;
    for partition in
        select relation.relname
        from pg_class relation
        where relation.relnamespace = to_regnamespace(current_schema)
          and relation.relkind = 'r'
          and relation.relname ~ '^(filter_decisions|candidate_calls|pruned_positions|call_losses|placebo_losses|stage_ledger)_[0-9a-f]{16}$'
        order by relation.relname
    loop
        execute format('alter table %I set schema partitions', partition);
    end loop;
end
$$;
