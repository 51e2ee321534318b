-- The release of a run.
select release.release_id, release.uri, release.manifest_sha256, release.documents, release.calls, release.lacking_tools
from run_releases made
join dataset_releases release on release.release_id = made.release_id
where made.run_id = :run_id
