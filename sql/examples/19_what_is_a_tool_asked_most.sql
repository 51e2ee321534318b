-- What is a tool asked most?
-- The twenty inputs that most calls of the run have, with what became of these.
create function what_is_a_tool_asked_most(run text default '')
    returns table (
        tool text, effective_input text, calls bigint, texts bigint, kept_calls bigint,
            largest_gain double precision)
    language sql stable
as $$
    select tool, effective_input, count(*) as calls, count(distinct document_id) as texts,
           count(*) filter (where outcome = 'kept') as kept_calls, max(gain) as largest_gain
    from candidates_of(run)
    group by tool, effective_input
    order by count(*) desc, tool, effective_input nulls last
    limit 20
$$;
comment on function what_is_a_tool_asked_most is
    'What is a tool asked most? About this run; an empty name is the newest run that ended well.';
