-- Tables and views of the schema with their descriptions, tables first; partitions are left out.
select c.relname as name, c.relkind = 'v' as is_view, obj_description(c.oid, 'pg_class') as description
from pg_class c
where c.relnamespace = to_regnamespace(current_schema)
  and c.relkind in ('r', 'p', 'v')
  and not c.relispartition
  and c.relname <> 'schema_files'
order by is_view, c.oid
