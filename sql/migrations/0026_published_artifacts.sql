-- Models and search indices that were published on S3 by command, so that pods find what no disk of theirs holds.
-- Writer: artifacts/published.py.

create table published_artifacts (
    uri text primary key,
    kind text not null check (kind in ('model', 'index')),
    identity text not null,
    manifest_sha256 text not null,
    bytes bigint not null check (bytes >= 0),
    source text not null,
    published_at timestamptz not null default now()
);
create index on published_artifacts (kind, published_at);
comment on table published_artifacts is 'Models and search indices on S3. The newest index is the one that pods search. Writer: artifacts/published.py.';
comment on column published_artifacts.uri is 'Where it is: s3://bucket/prefix.';
comment on column published_artifacts.kind is 'model or index.';
comment on column published_artifacts.identity is 'What recipes call it: name@content hash or hub id@revision of a model, the fingerprint of an index.';
comment on column published_artifacts.manifest_sha256 is 'sha256 of its manifest: another manifest at this address is refused.';
comment on column published_artifacts.bytes is 'Size of all its files.';
comment on column published_artifacts.source is 'What it was made from: a folder, a hub id with its revision, or the address of a Wikipedia.';
comment on column published_artifacts.published_at is 'When it was published last: publishing the same again makes it the newest.';
