-- Does the text continue with the result?
-- Calls with a result by tool and result_follows: equal, nearly (rounded), other_sign (no release takes
-- these), no, and empty for a result that cannot stand in a text. For the Calendar equal is the weekday, or
-- month and day; nearly the month or the year.
create function does_the_text_go_on_with_the_result(run text default '')
    returns table (
        tool text, result_follows text, calls bigint, kept_calls bigint, largest_gain double precision)
    language sql stable
as $$
    select tool, result_follows, count(*) as calls, count(*) filter (where outcome = 'kept') as kept_calls,
           max(gain) as largest_gain
    from candidates_of(run)
    where result is not null
    group by tool, result_follows
    order by tool, result_follows nulls last
$$;
comment on function does_the_text_go_on_with_the_result is
    'Does the text continue with the result? An empty name is the newest run that ended well.';
