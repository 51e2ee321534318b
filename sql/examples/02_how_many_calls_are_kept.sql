-- How many calls are kept, by tool and threshold?
-- The paper's Table 2 for a run: calls that save at least so many nats, and the texts that hold them; and the
-- share of them that results of other calls would save as well, with its 95 % interval.
create function how_many_calls_are_kept(run text default '')
    returns table (
        tool text, threshold double precision, is_keep_threshold boolean, calls bigint, texts bigint,
        releasable_calls bigint, false_discovery_rate double precision, rate_low double precision,
        rate_high double precision)
    language sql stable
as $$
    select tool, threshold, is_keep_threshold, calls, texts, releasable_calls, false_discovery_rate, rate_low,
        rate_high
    from threshold_counts
    where run_id = run_or_newest(run)
    order by tool, threshold
$$;
comment on function how_many_calls_are_kept is
    'How many calls are kept, by tool and threshold? About this run; an empty name is the newest run that '
    'ended well.';
