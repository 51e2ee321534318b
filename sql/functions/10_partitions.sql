-- Where the rows of one recipe are.

create or replace function partition_of(parent text, recipe text)
    returns regclass
    language sql stable parallel safe
as $$
    select cast(relation.oid as regclass)
    from pg_class relation
    where relation.relnamespace = to_regnamespace('partitions') and relation.relname = parent || '_' || recipe
$$;
comment on function partition_of is
    'The table in the schema partitions that has the rows of a table (candidate_calls, call_losses, '
    'stage_ledger and others) under one recipe, also while it is detached from it; null if there is none. '
    'Needs no rights on that schema: rows are read from the table itself.';
