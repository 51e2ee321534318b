-- Register a published model or index; the same again becomes the newest of its kind.
insert into published_artifacts (uri, kind, identity, manifest_sha256, bytes, source)
values (:uri, :kind, :identity, :manifest_sha256, :bytes, :source)
on conflict (uri) do update
set kind = excluded.kind, identity = excluded.identity, manifest_sha256 = excluded.manifest_sha256, bytes = excluded.bytes,
    source = excluded.source, published_at = now()
