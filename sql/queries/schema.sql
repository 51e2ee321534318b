-- What the database is made of: its files, relations, columns, partitions; locks and limits.

-- name: columns
-- Columns of the schema's tables and views, in order, with type, description and whether they are part of the primary key.
select c.relname as relation, a.attname as name, format_type(a.atttypid, a.atttypmod) as type,
       col_description(c.oid, a.attnum) as description, a.attnotnull as is_required,
       exists (
           select from pg_index i
           where i.indrelid = c.oid and i.indisprimary and a.attnum = any(i.indkey)) as is_key
from pg_class c
join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
where c.relnamespace = to_regnamespace(current_schema)
  and c.relkind in ('r', 'p', 'v')
  and not c.relispartition
order by c.oid, a.attnum

-- name: relations
-- Tables and views of the schema with their descriptions, tables first; partitions are left out.
select c.relname as name, c.relkind = 'v' as is_view, obj_description(c.oid, 'pg_class') as description
from pg_class c
where c.relnamespace = to_regnamespace(current_schema)
  and c.relkind in ('r', 'p', 'v')
  and not c.relispartition
  and c.relname <> 'schema_files'
order by is_view, c.oid

-- name: files
select name, sha256 from schema_files order by name

-- name: partition_exists
-- A row if the partition is there and attached.
select 1
from pg_inherits
where inhrelid = to_regclass(quote_ident(cast(:partition as text)))

-- name: grown_tables
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

-- name: create_files
-- The files of sql/schema, sql/migrations, sql/functions and sql/views that this database was made with.
create table if not exists schema_files (
    name       text primary key,
    sha256     text not null,
    applied_at timestamptz not null default now()
)

-- name: drop_functions_and_views
delete from schema_files where name like 'functions/%' or name like 'views/%'

-- name: insert_file
insert into schema_files (name, sha256) values (:name, :sha256)
