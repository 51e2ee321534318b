-- The corpora, with their versions, of the runs that made the release at an address, or the release that the model there learned from.
select run.corpus_uri, run.corpus_version
from dataset_releases release
join annotation_runs run on run.run_id = release.run_id
where release.uri = :uri
   or release.release_id = (select release_id from finetuned_models where uri = :uri)
