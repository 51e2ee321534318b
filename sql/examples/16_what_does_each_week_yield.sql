-- What does each week of the corpus yield?
-- By tool and the week of the record's date, from Monday on; records without a date are the last row of a
-- tool. The date is that of the variant that the tool read.
create function what_does_each_week_yield(run text default '')
    returns table (
        tool text, week date, calls bigint, kept_calls bigint, kept_texts bigint)
    language sql stable
as $$
    select tool, cast(date_trunc('week', document_date) as date) as week, count(*) as calls,
           count(*) filter (where outcome = 'kept') as kept_calls,
           count(distinct document_id) filter (where outcome = 'kept') as kept_texts
    from candidates_of(run)
    group by tool, cast(date_trunc('week', document_date) as date)
    order by tool, week nulls last
$$;
comment on function what_does_each_week_yield is
    'What does each week of the corpus yield? About this run; an empty name is the newest run that ended '
    'well.';
