-- Which texts yield nothing?
-- Texts of the run in which calls were proposed and none of any tool is kept, with the text after one of
-- these calls; those with the most calls first.
create function which_texts_yield_nothing(run text default '')
    returns table (
        document_id text, calls bigint, tools bigint, scored_calls bigint, largest_gain double precision,
        text_after_a_call text)
    language sql stable
as $$
    select document_id, count(*) as calls, count(distinct tool) as tools, count(gain) as scored_calls,
           max(gain) as largest_gain, min(left(text_after, 60)) as text_after_a_call
    from candidates_of(run)
    group by document_id
    having count(*) filter (where outcome = 'kept') = 0
    order by count(*) desc, document_id
    limit 20
$$;
comment on function which_texts_yield_nothing is
    'Which texts yield nothing? About this run; an empty name is the newest run that ended well.';
