-- Corpora and their versions.

-- name: newest
-- The corpora with their newest version and their runs' schedules, which say who may see them; the one that
-- changed last first.
select corpus.corpus_id, corpus.uri, newest.version, newest.documents, newest.made_at, runs.runs,
    runs.schedules
from corpora corpus
cross join lateral (
    select version, documents, made_at from corpus_versions where corpus_id = corpus.corpus_id
        order by version desc limit 1
) newest
cross join lateral (
    select count(*) as runs,
           coalesce(jsonb_agg(distinct jsonb_build_object(
               'schedule', run.schedule,
               'annotates', exists (select from run_tools where run_tools.run_id = run.run_id))),
                   '[]') as schedules
    from annotation_runs run
    where run.corpus_id = corpus.corpus_id
) runs
order by newest.made_at desc, corpus.corpus_id
limit :at_most

-- name: runs
-- The newest finished runs over a corpus: what each kept by tool, as stored with it, and its release.
select run.run_id, run.schedule, run.state, run.corpus_version, run.started_at,
       exists (select from run_tools where run_tools.run_id = run.run_id) as annotates,
       release.release_id, release.uri, release.documents as texts, release.calls, release.lacking_tools,
           release.withdrawn_at,
       (select coalesce(jsonb_object_agg(kept.tool, kept.count), '{}')
        from finished_run_yield kept
        where kept.run_id = run.run_id and kept.stage = 'keep' and kept.reason = 'kept') as kept
from annotation_runs run
left join run_releases made on made.run_id = run.run_id
left join dataset_releases release on release.release_id = made.release_id
where run.corpus_id = :corpus_id and run.finished_at is not null
order by run.started_at desc, run.run_id
limit :at_most

-- name: versions
-- The newest versions of a corpus; no row before its first.
select version, documents, added, removed, corrected, changed, kept, files, records, duplicates, rejected,
    made_at
from corpus_versions
where corpus_id = :corpus_id
order by version desc
limit :at_most

-- name: stamp_files
-- Files have the bytes of their last ingestion: what their source says of them now.
update corpus_files file
set size_bytes = seen.size_bytes, stamp = seen.stamp
from unnest(cast(:file_uris as text[]), cast(:sizes as bigint[]), cast(:stamps as text[])) as seen (file_uri,
    size_bytes, stamp)
where file.corpus_id = :corpus_id and file.file_uri = seen.file_uri

-- name: insert
insert into corpora (corpus_id, uri) values (:corpus_id, :uri) on conflict do nothing

-- name: insert_version
-- What the files hold now, what changed since the version before, and from which files the version was made. A
-- constraint compares the files' sums with the number of documents.
insert into corpus_versions
    (corpus_id, version, documents, added, removed, corrected, changed, kept, files, records, duplicates,
        rejected)
select :corpus_id, :version, :documents, :added, :removed, :corrected, :changed,
    :documents - :added - :corrected,
       :files, :records, :duplicates, :rejected;
insert into corpus_version_files (corpus_id, version, file_uri, change, content_sha256, records)
select :corpus_id, :version, file_uri, change, content_sha256, records
from read_files

-- name: rejection_counts
select reason, sum(records)::bigint as records
from rejected_records
where corpus_id = :corpus_id
group by reason
order by reason

-- name: by_id
select c.corpus_id, c.uri, c.created_at,
       exists (select from corpus_documents d where d.corpus_id = c.corpus_id
           and d.left_version is null) as has_documents,
       refused.reason as first_reason, refused.detail as first_detail
from corpora c
left join lateral (
    select reason, detail
    from rejected_documents
    where corpus_id = c.corpus_id
    order by file_uri collate "C", line
    limit 1
) refused on true
where c.corpus_id = :corpus_id
