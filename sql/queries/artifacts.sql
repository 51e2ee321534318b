-- Models, indexes and other published files that are registered.

-- name: register
-- Register a published model or index; the same again becomes the newest of its kind.
insert into published_artifacts (uri, kind, identity, manifest_sha256, bytes, source)
values (:uri, :kind, :identity, :manifest_sha256, :bytes, :source)
on conflict (uri) do update
set kind = excluded.kind, identity = excluded.identity, manifest_sha256 = excluded.manifest_sha256,
    bytes = excluded.bytes,
    source = excluded.source, published_at = now()

-- name: newest
-- The address of the model or index that was published last, or of those of one source; no row if none was.
select uri
from published_artifacts
where kind = :kind and (cast(:source as text) is null or source = :source)
order by published_at desc, uri
limit 1

-- name: manifest
-- The hash of the manifest that was registered for the release, model or index at an address; no row if none
-- is, or it was withdrawn.
select manifest_sha256 from dataset_releases where uri = :uri and withdrawn_at is null
union all
select manifest_sha256 from finetuned_models where uri = :uri and withdrawn_at is null
union all
select manifest_sha256 from published_artifacts where uri = :uri
limit 1
