-- What does a kept call cost from night to night?
-- Seconds of work that each run of the corpus did itself, by tool; and those of all nights until then for each call that the run keeps.
create function what_does_a_kept_call_cost_each_night(run text default '')
    returns table (
        tool text, run_id text, started_at timestamptz, own_seconds double precision, kept_calls bigint,
        seconds_so_far double precision, seconds_per_kept_call double precision)
    language sql stable
as $$
    with nights as (
        select counts.tool, night.run_id, night.started_at, counts.calls as kept_calls,
               coalesce((select sum(work.seconds)
                         from finished_run_work work
                         where work.run_id = night.run_id and work.tool = counts.tool), 0) as own_seconds
        from annotation_runs night
        join threshold_counts counts on counts.run_id = night.run_id and counts.is_keep_threshold
        where night.corpus_id = (select chosen.corpus_id from annotation_runs chosen where chosen.run_id = run_or_newest(run))
    ),
    summed as (
        select tool, run_id, started_at, own_seconds, kept_calls,
               sum(own_seconds) over (partition by tool order by started_at, run_id) as seconds_so_far
        from nights
    )
    select tool, run_id, started_at, own_seconds, kept_calls, seconds_so_far, seconds_so_far / nullif(kept_calls, 0) as seconds_per_kept_call
    from summed
    order by tool, started_at, run_id
$$;
comment on function what_does_a_kept_call_cost_each_night is 'What does a kept call cost from night to night? About the corpus of this run, its runs that have ended; an empty name is the newest run that ended well.';
