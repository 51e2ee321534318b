-- Why do calls have no result?
-- By what the tools said: the calls and distinct queries that it was said of, and the first of these.
create function why_do_calls_have_no_result(run text default '')
    returns table (tool text, reason text, message text, calls bigint, queries bigint, query text)
    language sql stable
as $$
    select tool, reason, message, cast(sum(calls) as bigint) as calls, count(*) as queries,
        min(query) as query
    from retrieved_of(run)
    where reason is not null
    group by tool, reason, message
    order by sum(calls) desc, tool, reason, message
    limit 20
$$;
comment on function why_do_calls_have_no_result is
    'Why do calls have no result? About this run; an empty name is the newest run that ended well.';
