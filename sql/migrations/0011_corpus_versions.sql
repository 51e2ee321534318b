-- A corpus has versions: an ingestion that finds a change makes the next one. Membership is an interval of versions, so that a version
-- costs what changed. Writer: stages/ingestion.py. The corpora of before become version 1.

create table corpus_versions (
    corpus_id  text not null references corpora,
    version    integer not null check (version >= 1),
    documents  integer not null check (documents >= 0),
    added      integer not null check (added >= 0),
    removed    integer not null check (removed >= 0),
    corrected  integer not null check (corrected >= 0),
    changed    integer not null check (changed >= 0),
    kept       integer not null check (kept >= 0),
    files      integer not null check (files >= 0),
    records    integer not null check (records >= 0),
    duplicates integer not null check (duplicates >= 0),
    rejected   integer not null check (rejected >= 0),
    made_at    timestamptz not null default now(),
    primary key (corpus_id, version),
    constraint every_document_is_accounted_for check (documents = added + corrected + kept),
    constraint every_record_is_accounted_for check (records = documents + duplicates + rejected)
);
comment on table corpus_versions is 'One row for each version of a corpus: what it holds, and what changed since the version before. Never updated.';
comment on column corpus_versions.corpus_id is 'The corpus.';
comment on column corpus_versions.version is 'From 1, without gaps.';
comment on column corpus_versions.documents is 'Documents of the corpus at this version: added + corrected + kept.';
comment on column corpus_versions.added is 'Documents that the version before did not hold.';
comment on column corpus_versions.removed is 'Documents of the version before that this one does not hold.';
comment on column corpus_versions.corrected is 'Documents of both versions, whose record has another url, date or title by now.';
comment on column corpus_versions.changed is 'Records with an id whose text is another by now: the old text is counted in removed, the new one in added, where no other record holds them.';
comment on column corpus_versions.kept is 'Documents of both versions, with the same url, date and title.';
comment on column corpus_versions.files is 'Files of the corpus at this version.';
comment on column corpus_versions.records is 'Records of these files: documents + duplicates + rejected.';
comment on column corpus_versions.duplicates is 'Records whose text another record of the corpus holds, which counts.';
comment on column corpus_versions.rejected is 'Records that were refused; rejected_documents says why, for the newest version.';
comment on column corpus_versions.made_at is 'When the version was made.';

create table corpus_version_files (
    corpus_id      text not null,
    version        integer not null,
    file_uri       text not null,
    change         text not null check (change in ('added', 'changed', 'removed')),
    content_sha256 text check (content_sha256 ~ '^[0-9a-f]{64}$'),
    records        integer check (records >= 0),
    primary key (corpus_id, version, file_uri),
    foreign key (corpus_id, version) references corpus_versions,
    constraint a_removed_file_has_no_content check ((change = 'removed') = (content_sha256 is null))
);
comment on table corpus_version_files is 'From which files a version was made: one row for each file that was added, changed or removed since the version before.';
comment on column corpus_version_files.corpus_id is 'The corpus.';
comment on column corpus_version_files.version is 'The version.';
comment on column corpus_version_files.file_uri is 'The file.';
comment on column corpus_version_files.change is 'added, changed or removed, since the version before.';
comment on column corpus_version_files.content_sha256 is 'sha256 of the file''s bytes at this version; null where it was removed.';
comment on column corpus_version_files.records is 'Records that the file held at this version; null where it was removed.';

-- Membership. A constant default is metadata alone: Postgres writes no row anew.
alter table corpus_documents
    add column first_version integer not null default 1 check (first_version >= 1),
    add column left_version integer,
    add column variant_id uuid references documents,
    add column record_id text,
    add column title text,
    add constraint an_interval_is_not_empty check (left_version > first_version),
    drop constraint corpus_documents_pkey,
    drop constraint corpus_documents_corpus_id_ordinal_key,
    add primary key (corpus_id, document_id, first_version);
create unique index corpus_documents_now on corpus_documents (corpus_id, document_id) where left_version is null;
create unique index corpus_documents_now_in_order on corpus_documents (corpus_id, ordinal) where left_version is null;
create index corpus_documents_in_order on corpus_documents (corpus_id, ordinal);
create index corpus_documents_first on corpus_documents (corpus_id, first_version);
create index corpus_documents_left on corpus_documents (corpus_id, left_version) where left_version is not null;
create index corpus_documents_by_record on corpus_documents (corpus_id, record_id) where left_version is null and record_id is not null;
create index corpus_documents_by_variant on corpus_documents (variant_id) where variant_id is not null;
comment on table corpus_documents is 'Which documents a corpus holds, from which version to which: one row for each interval. A corrected url, date or title ends an interval and starts another.';
comment on column corpus_documents.first_version is 'The first version with this row.';
comment on column corpus_documents.left_version is 'The first version without it; null while the newest version holds it.';
comment on column corpus_documents.variant_id is 'The row of documents with this text and the url and date of this record, where they are not those of document_id; null where they are. Tools that read url and date annotate the variant.';
comment on column corpus_documents.record_id is 'The record''s "id", if it had one.';
comment on column corpus_documents.title is 'The record''s "title", if it had one; null for rows from before migration 0011 (documents.title holds it).';
comment on column corpus_documents.ordinal is 'The document''s place in the corpus, from 0: by file name, then by line, in the order of first ingestion. Does not change while the document is in the corpus; places of documents that left stay empty.';

alter table documents add column variant_of uuid references documents;
comment on column documents.variant_of is 'The document with the same text, where another record of this text has another url or date; null for the first record of a text.';
create index on documents (variant_of) where variant_of is not null;

insert into corpus_versions (corpus_id, version, documents, added, removed, corrected, changed, kept, files, records, duplicates, rejected, made_at)
select c.corpus_id, 1, member.documents, member.documents, 0, 0, 0, 0, file.files,
       member.documents + file.duplicates + refused.records, file.duplicates, refused.records, c.created_at
from corpora c
cross join lateral (select count(*) as documents from corpus_documents d where d.corpus_id = c.corpus_id) member
cross join lateral (
    select count(*) as files, coalesce(sum(f.duplicates), 0) as duplicates from corpus_files f where f.corpus_id = c.corpus_id
) file
cross join lateral (select count(*) as records from rejected_documents r where r.corpus_id = c.corpus_id) refused;
insert into corpus_version_files (corpus_id, version, file_uri, change, content_sha256, records)
select corpus_id, 1, file_uri, 'added', content_sha256, records from corpus_files;
