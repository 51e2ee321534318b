-- What views say of their columns.

create or replace procedure inherit_comments(described text, variadic sources text[])
    language plpgsql
as $$
declare
    inherited record;
begin
    for inherited in
        select distinct on (own.attname) own.attname,
            col_description(source.attrelid, source.attnum) as comment
        from pg_attribute own
        join unnest(sources) with ordinality listed (relation, place) on true
        join pg_attribute source on source.attrelid = listed.relation::regclass
            and source.attname = own.attname
        where own.attrelid = described::regclass and own.attnum > 0
          and col_description(own.attrelid, own.attnum) is null
              and col_description(source.attrelid, source.attnum) is not null
        order by own.attname, listed.place
    loop
        execute format('comment on column %I.%I is %L', described, inherited.attname, inherited.comment);
    end loop;
end
$$;
comment on procedure inherit_comments is
    'Columns of a view that have no comment get that of the column with their name in the first of these '
    'tables and views that has one.';
