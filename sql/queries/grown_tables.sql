-- The tables and partitions of :tables that have grown by more than a tenth since their statistics were made, and their parents. Autovacuum
-- looks at the partitions too, at its own times, and never at a partitioned parent, whose statistics joins are planned by.
with relations as (
    select parent.oid as parent_id, coalesce(child.oid, parent.oid) as oid
    from pg_class parent
    left join pg_inherits inherited on inherited.inhparent = parent.oid and parent.relkind = 'p'
    left join pg_class child on child.oid = inherited.inhrelid
    where parent.oid = any(cast(cast(:tables as text[]) as regclass[]))
),
grown as (
    select relations.parent_id, relations.oid
    from relations
    join pg_class relation on relation.oid = relations.oid
    where relation.relkind = 'r'
      and pg_stat_get_mod_since_analyze(relation.oid) > 1000 + greatest(relation.reltuples, 0) / 10
)
select distinct cast(oid::regclass as text) as relation, oid = parent_id as is_parent
from (
    select parent_id, oid from grown
    union all
    select parent_id, parent_id from grown
) analysed
order by is_parent, relation
