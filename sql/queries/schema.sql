-- What the database is made of: its files, relations, columns, partitions; locks and limits.

-- name: columns
-- Columns of the schema's tables and views, in order, with type, description and whether they are part of the
-- primary key.
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

-- name: grown_tables
-- The tables and partitions of :tables that have grown by more than a tenth since their statistics were made,
-- and their parents. Autovacuum looks at the partitions too, at its own times, and never at a partitioned
-- parent, whose statistics joins are planned by.
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
select distinct space.nspname as schema, relation.relname as relation,
    analysed.oid = analysed.parent_id as is_parent
from (
    select parent_id, oid from grown
    union all
    select parent_id, parent_id from grown
) analysed
join pg_class relation on relation.oid = analysed.oid
join pg_namespace space on space.oid = relation.relnamespace
order by is_parent, relation

-- name: create_files
-- The files of sql/schema, sql/migrations, sql/functions, sql/views and sql/examples that this database was
-- made with.
create table if not exists schema_files (
    name       text primary key,
    sha256     text not null,
    applied_at timestamptz not null default now()
)

-- name: drop_functions_and_views
delete from schema_files where name like 'functions/%' or name like 'views/%' or name like 'examples/%'

-- name: forget_tables
delete from schema_files where name like 'schema/%' or name like 'migrations/%'

-- name: insert_file
insert into schema_files (name, sha256) values (:name, :sha256)

-- name: dependent_views
-- Views of people, and functions with a body that Postgres knows, that stand on our views and examples, and
-- (with_tables) on our tables and functions: each before those that stand on it, with the statements that
-- make it again. What else stands on them is a row without kind, also what is in a schema that this role may
-- not build in.
with recursive ours as (
    select cast(cast('pg_class' as regclass) as oid) as class_id, oid as object_id
    from pg_class
    where relnamespace = to_regnamespace(current_schema)
      and (:with_tables and relkind in ('r', 'p') or relkind = 'v' and relname = any(cast(:views as text[])))
    union all
    select cast('pg_proc' as regclass), oid from pg_proc
    where pronamespace = to_regnamespace(current_schema)
        and (:with_tables or proname = any(cast(:functions as text[])))
),
-- Which object needs which other. What a view needs, its rule needs; who needs the type of a row needs the
-- relation.
needs as (
    select distinct
           case when rule.oid is not null then cast(cast('pg_class' as regclass) as oid)
               else depend.classid end as class_id,
           coalesce(rule.ev_class, depend.objid) as object_id,
           case when of_row.typrelid is not null then cast(cast('pg_class' as regclass) as oid)
               else depend.refclassid end as needed_class_id,
           coalesce(of_row.typrelid, depend.refobjid) as needed_id
    from pg_depend depend
    left join pg_rewrite rule on depend.classid = cast('pg_rewrite' as regclass) and rule.oid = depend.objid
    left join pg_type type on depend.refclassid = cast('pg_type' as regclass) and type.oid = depend.refobjid
    left join pg_type element on element.oid = type.typelem and type.typelem <> 0
    left join pg_type of_row on of_row.oid = coalesce(element.oid, type.oid) and of_row.typrelid <> 0
    where depend.deptype = 'n'
),
standing as (
    select needs.class_id, needs.object_id, 1 as height
    from needs
    join ours on (ours.class_id, ours.object_id) = (needs.needed_class_id, needs.needed_id)
    where (needs.class_id, needs.object_id) not in (select class_id, object_id from ours)
    union
    select needs.class_id, needs.object_id, below.height + 1
    from standing below
    join needs on (needs.needed_class_id, needs.needed_id) = (below.class_id, below.object_id)
    where (needs.class_id, needs.object_id) not in (select class_id, object_id from ours)
      and (needs.class_id, needs.object_id) <> (below.class_id, below.object_id)
),
placed as (
    select class_id, object_id, max(height) as height from standing group by class_id, object_id
)
select placed.object_id, placed.height,
    pg_describe_object(placed.class_id, placed.object_id, 0) as description,
       coalesce(named.name, cast(cast(function.oid as regprocedure) as text)) as name,
       case when not has_schema_privilege(coalesce(relation.relnamespace, function.pronamespace), 'create')
           then null
            when relation.relkind = 'v' then 'view' when relation.relkind = 'm' then 'materialized view'
            when function.prokind = 'p' then 'procedure' when function.oid is not null
                then 'function' end as kind,
       pg_get_userbyid(coalesce(relation.relowner, function.proowner)) as owner,
       case
           when relation.relkind in ('v', 'm') then array[
               format('create %sview %s%s as %s%s', case relation.relkind when 'm' then 'materialized '
                   else '' end, named.name,
                      ' with (' || array_to_string(relation.reloptions, ', ') || ')',
                      rtrim(pg_get_viewdef(relation.oid), ';'), case relation.relkind when 'm'
                          then ' with no data' end)]
           when function.oid is not null then array[pg_get_functiondef(function.oid)]
       end
       || array(select pg_get_indexdef(index.indexrelid) from pg_index index
           where index.indrelid = relation.oid order by index.indexrelid)
       || array(select pg_get_ruledef(rule.oid) from pg_rewrite rule
                where rule.ev_class = relation.oid and rule.rulename <> '_RETURN' order by rule.rulename)
       || array(select pg_get_triggerdef(own.oid) from pg_trigger own
                where own.tgrelid = relation.oid and not own.tgisinternal order by own.tgname)
       || array(select format('comment on %s%s is %L', said.of, case when said.objsubid > 0
           then format('.%I', said.attname) end, said.description)
                from (select text.objsubid, text.description, attribute.attname,
                             case when text.objsubid > 0 then 'column ' || named.name
                                  when relation.relkind = 'm' then 'materialized view ' || named.name
                                  when relation.relkind = 'v' then 'view ' || named.name
                                  else 'function ' || cast(cast(function.oid as regprocedure) as text) end as of
                      from pg_description text
                      left join pg_attribute attribute on attribute.attrelid = relation.oid
                          and attribute.attnum = text.objsubid
                      where text.classoid = placed.class_id and text.objoid = placed.object_id) said
                order by said.objsubid)
       || array(select format('grant %s on %s%s to %s%s', granted.privilege_type, case
           when function.oid is not null then 'function ' end,
                              coalesce(named.name, cast(cast(function.oid as regprocedure) as text)),
                              case granted.grantee when 0 then 'public'
                                  else quote_ident(pg_get_userbyid(granted.grantee)) end,
                              case when granted.is_grantable then ' with grant option' end)
                from aclexplode(coalesce(relation.relacl, function.proacl)) granted
                where granted.grantee <> coalesce(relation.relowner, function.proowner)
                order by granted.grantee, granted.privilege_type) as statements
from placed
left join pg_class relation
    on placed.class_id = cast('pg_class' as regclass) and relation.oid = placed.object_id
        and relation.relkind in ('v', 'm')
left join pg_proc function on placed.class_id = cast('pg_proc' as regclass)
    and function.oid = placed.object_id
left join lateral (
    select quote_ident(space.nspname) || '.' || quote_ident(relation.relname) as name from pg_namespace space
        where space.oid = relation.relnamespace
) named on true
order by placed.height, placed.object_id

-- name: has_relation
-- A row if the view, or the function, with this number is there.
select 1 where exists (select from pg_class where oid = :object_id)
    or exists (select from pg_proc where oid = :object_id)

-- name: is_own_role
-- A row if the session's role has this name.
select 1 where current_user = :role

-- name: insert_lost_view
insert into lost_views (name, owner, statements, problem) values (:name, :owner, :statements, :problem)
on conflict do nothing

-- name: lost_views
-- Views of people that a migration could not make again, and that are not there.
select name, owner, problem, lost_at
from lost_views
where to_regclass(case when strpos(name, '(') = 0 then name end) is null
  and to_regprocedure(case when strpos(name, '(') > 0 then name end) is null
order by lost_at, name

-- name: lock_room
-- How many locks all sessions together may hold, and how many one takes that asks about every recipe: those
-- of the partitions of these tables, and of their indexes.
select limits.connections, limits.connections * cast(current_setting('max_locks_per_transaction') as integer) as slots,
       (select count(*) + coalesce(sum((select count(*) from pg_index where indrelid = tree.relid)), 0)
        from unnest(cast(:tables as text[])) parent
        cross join lateral pg_partition_tree(cast(parent as regclass)) tree)::bigint as locks_of_a_question
from (
    select cast(current_setting('max_connections') as integer) + cast(current_setting('max_prepared_transactions') as integer) as connections
) limits

-- name: memory
-- Bytes of the database, of Postgres' buffers, and of each sort of each session; whether Postgres is on the
-- machine that asks.
select pg_database_size(current_database()) as database_bytes,
       pg_size_bytes(current_setting('shared_buffers')) as shared_buffers,
       pg_size_bytes(current_setting('work_mem')) as work_mem,
       cast(current_setting('max_connections') as integer) as connections,
       coalesce(inet_server_addr() << inet '127.0.0.0/8' or inet_server_addr() = inet '::1', true) as is_here

-- name: partition
-- A row if the table of the partition is there, and whether it is attached.
select relispartition as is_attached
from pg_class
where oid = partition_of(:table, :recipe_id)
