-- What does a kept call cost?
-- Seconds of work by tool, over the documents of a run, whichever run did the work.
create function what_does_a_kept_call_cost(run text default '')
    returns table (
        tool text, kept_calls bigint, released_calls bigint, seconds double precision, own_seconds double precision,
        seconds_per_kept_call double precision, seconds_per_released_call double precision)
    language sql stable
as $$
    select tool, kept_calls, released_calls, round(seconds::numeric, 1) as seconds, round(own_seconds::numeric, 1) as own_seconds,
           round(seconds_per_kept_call::numeric, 2) as seconds_per_kept_call,
           round(seconds_per_released_call::numeric, 2) as seconds_per_released_call
    from cost_per_kept_call
    where run_id = run_or_newest(run)
    order by tool
$$;
comment on function what_does_a_kept_call_cost is 'What does a kept call cost? About this run; an empty name is the newest run that ended well.';
