-- The hash of the manifest that was registered for the release, model or index at an address; no row where none is, or it was withdrawn.
select manifest_sha256 from dataset_releases where uri = :uri and withdrawn_at is null
union all
select manifest_sha256 from finetuned_models where uri = :uri and withdrawn_at is null
union all
select manifest_sha256 from published_artifacts where uri = :uri
limit 1
