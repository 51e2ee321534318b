-- The newest finished runs over a corpus: what each kept by tool, as stored with it, and its release.
select run.run_id, run.schedule, run.state, run.corpus_version, run.started_at,
       exists (select from run_tools where run_tools.run_id = run.run_id) as annotates,
       release.release_id, release.uri, release.documents as texts, release.calls, release.lacking_tools, release.withdrawn_at,
       (select coalesce(jsonb_object_agg(kept.tool, kept.count), '{}')
        from finished_run_yield kept
        where kept.run_id = run.run_id and kept.stage = 'keep' and kept.reason = 'kept') as kept
from annotation_runs run
left join run_releases made on made.run_id = run.run_id
left join dataset_releases release on release.release_id = made.release_id
where run.corpus_id = :corpus_id and run.finished_at is not null
order by run.started_at desc, run.run_id
limit :at_most
