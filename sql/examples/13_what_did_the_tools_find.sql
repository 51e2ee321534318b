-- What did the tools find, and which calls used it?
-- The queries with the most kept calls, with the answer that they used; column passages holds every answer.
create function what_did_the_tools_find(run text default '')
    returns table (
        tool text, query text, result text, reason text, calls bigint, texts bigint, kept_calls bigint,
        largest_gain double precision)
    language sql stable
as $$
    select tool, query, result, reason, calls, texts, kept_calls, round(best_gain::numeric, 2) as largest_gain
    from retrieved_of(run)
    order by kept_calls desc, calls desc, tool, query
    limit 20
$$;
comment on function what_did_the_tools_find is
    'What did the tools find, and which calls used it? About this run; an empty name is the newest run that '
    'ended well.';
