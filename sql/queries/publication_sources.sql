-- The runs that made the release at an address, or the release that the model there learned from: their corpora, and when
-- the publication at the address was registered (UTC).
select run.corpus_uri, run.corpus_version, coalesce(model.created_at, release.created_at) at time zone 'UTC' as published_at
from dataset_releases release
join annotation_runs run on run.run_id = release.run_id
left join finetuned_models model on model.uri = :uri
where release.uri = :uri
   or release.release_id = model.release_id
