-- The newest runs, with their numbers: stored for finished runs, computed for the others.
with newest as (
    select * from annotation_runs order by started_at desc, run_id limit :at_most
)
select run.run_id, run.state, run.schedule, run.corpus_uri, run.corpus_version, run.started_at, run.finished_at,
       (select coalesce(max(total), 0) from annotation_progress progress
        where progress.run_id = run.run_id and progress.stage = 'filter') as documents,
       (select coalesce(sum(calls), 0)::bigint from threshold_counts counts
        where counts.run_id = run.run_id and counts.is_keep_threshold) as kept_calls,
       release.release_id, coalesce(release.documents, 0) as examples,
       coalesce(own.documents, 0)::bigint as own_documents, coalesce(own.device_seconds, 0) as device_seconds
from newest run
left join run_releases made on made.run_id = run.run_id
left join dataset_releases release on release.release_id = made.release_id
left join lateral (
    select sum(documents) as documents, sum(device_seconds) as device_seconds
    from (
        select max(work.documents) as documents,
               sum(work.seconds) filter (
                   where work.stage in ('sample', 'score', 'placebo')
                      or work.stage = 'execute' and work.tool = any (cast(:device_tools as text[]))) as device_seconds
        from run_work work
        where work.run_id = run.run_id
        group by work.tool
    ) by_tool
) own on true
order by run.started_at desc, run.run_id
