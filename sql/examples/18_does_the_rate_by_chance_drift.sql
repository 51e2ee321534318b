-- Does the share that is kept by chance drift from night to night?
-- The false-discovery rate of each tool at its own threshold, over all runs of the corpus, with the change
-- since the run before.
create function does_the_rate_by_chance_drift(run text default '')
    returns table (
        tool text, run_id text, started_at timestamptz, threshold double precision, calls bigint,
        placebos_scored bigint, false_discovery_rate double precision, rate_low double precision,
        rate_high double precision, change double precision)
    language sql stable
as $$
    select counts.tool, night.run_id, night.started_at, counts.threshold, counts.calls,
        counts.placebos_scored, counts.false_discovery_rate,
           counts.rate_low, counts.rate_high,
           counts.false_discovery_rate
               - lag(counts.false_discovery_rate) over (partition by counts.tool
                   order by night.started_at, night.run_id) as change
    from annotation_runs night
    join threshold_counts counts on counts.run_id = night.run_id and counts.is_keep_threshold
    where night.corpus_id = (select chosen.corpus_id from annotation_runs chosen
        where chosen.run_id = run_or_newest(run))
    order by counts.tool, night.started_at, night.run_id
$$;
comment on function does_the_rate_by_chance_drift is
    'Does the share that is kept by chance drift from night to night? About the corpus of this run; an '
    'empty name is the newest run that ended well.';
