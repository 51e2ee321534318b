-- The release at the address of a corpus, and the files of the corpus as they were ingested.
select release.release_id, release.manifest_sha256, run.chained_release_id,
       array(select content_sha256 from corpus_files where corpus_id = :corpus_id) as files
from dataset_releases release
join annotation_runs run on run.run_id = release.run_id
where release.uri = :uri and release.withdrawn_at is null
