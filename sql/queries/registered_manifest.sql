-- The hash of the manifest that was registered for the release or model at an address; no row where none is, or it was withdrawn.
select manifest_sha256 from dataset_releases where uri = :uri and withdrawn_at is null
union all
select manifest_sha256 from finetuned_models where uri = :uri and withdrawn_at is null
limit 1
