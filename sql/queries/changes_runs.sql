-- Two runs that are compared, the earlier one first, with what they released; where neither made a release, with what they keep.
select run.run_id, run.state, run.schedule, run.corpus_id, run.corpus_uri, run.corpus_version, run.ordinal_limit, run.model_identity,
       run.parameters, run.previous_run_id, run.started_at, run.finished_at, run.problem,
       release.release_id, coalesce(release.documents, kept.texts, 0) as texts, coalesce(release.calls, kept.calls, 0) as calls,
       coalesce(release.lacking_tools, '{}') as lacking_tools,
       array(select tool from run_tools where run_id = run.run_id order by tool) as tools
from annotation_runs run
left join run_releases made on made.run_id = run.run_id
left join dataset_releases release on release.release_id = made.release_id
left join lateral (
    select count(*) as calls, count(distinct document_id) as texts
    from unnest(cast(:run_ids as text[])) other (run_id)
    cross join lateral calls_to_compare(run.run_id, other.run_id)
    where other.run_id <> run.run_id
) kept on release.release_id is null
where run.run_id = any (cast(:run_ids as text[]))
order by run.started_at, run.run_id
