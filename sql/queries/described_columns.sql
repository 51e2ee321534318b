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
