-- A release with the run that made it.
select release.release_id, release.run_id, release.uri, release.manifest_sha256, release.documents, release.calls, release.lacking_tools,
       release.created_at, release.withdrawn_at, run.schedule, run.corpus_id, run.corpus_uri,
       exists (select from run_tools where run_tools.run_id = run.run_id) as annotates,
       array(select tool from run_tools where run_tools.run_id = run.run_id order by tool) as tools
from dataset_releases release
join annotation_runs run on run.run_id = release.run_id
where release.release_id = :release_id
