-- Texts, and which of them a corpus holds in each of its versions.

-- The rows of each recipe: \d of psql lists the tables, and not the part of each recipe. Readers read through the tables, and need no rights here.
do $$
begin
    -- A superuser can have made it for an owner that may not create schemas in this database.
    if to_regnamespace('partitions') is null then
        create schema partitions;
        comment on schema partitions is 'The rows of each recipe, as partitions of the stages'' tables: read those tables instead.';
    end if;
end
$$;

create table documents (
    document_id        uuid primary key,
    text               text not null check (text <> ''),
    url                text,
    document_date      date,
    title              text,
    escaped_characters integer not null default 0 check (escaped_characters >= 0),
    created_at         timestamptz not null default now(),
    variant_of         uuid references documents,
    record_hash        uuid
);
create index on documents (variant_of) where variant_of is not null;
comment on table documents is 'One row for each text, in however many corpora it occurs. Never updated: url, date and title are those of the first record with this text.';
comment on column documents.document_id is 'Hash of the text: first 128 bits of a sha256 (records.document_id_of).';
comment on column documents.text is 'The text as it is annotated: the record''s text, with U+2400 for U+0000, which Postgres cannot store. All character offsets of other tables count its Unicode code points from 0.';
comment on column documents.url is 'The record''s "url", if it had one.';
comment on column documents.document_date is 'The record''s "date", if it had one that reads as a day. Dates inside the url are the Calendar tool''s business.';
comment on column documents.title is 'The record''s "title", if it had one.';
comment on column documents.escaped_characters is 'How many times the record''s text holds U+0000, each replaced by U+2400. Before 2026-11-26 all control characters but tab and line ends were replaced (U+0001 by U+2401 and so on).';
comment on column documents.created_at is 'When the row was written.';
comment on column documents.variant_of is 'The document with the same text, where another record of this text has another url or date; null for the first record of a text.';
comment on column documents.record_hash is 'variant_id_of(document_id, url, document_date) as the row was written; null for a variant, whose id that is.';

create table corpora (
    corpus_id              text primary key check (corpus_id ~ '^[0-9a-f]{16}$'),
    uri                    text not null unique,
    created_at             timestamptz not null default now(),
    memberships_deleted_at timestamptz
);
comment on table corpora is 'One row a corpus: a file or a folder of JSONL files that was ingested.';
comment on column corpora.corpus_id is 'First 16 hex digits of the sha256 of uri.';
comment on column corpora.uri is 'Address of the corpus: file:///... or s3://bucket/prefix, without a slash at the end, and behind it the names of its fields where these are not the usual ones: s3://bucket/ccnet --field text=raw_content.';
comment on column corpora.created_at is 'When its first version was made.';
comment on column corpora.memberships_deleted_at is 'When the corpus was last forgotten as a whole, with all of its memberships; null if it never was. Numbers of runs that were stored before are nothing that those of a later run follow from.';

create table corpus_versions (
    corpus_id  text references corpora,
    version    integer check (version >= 1),
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
    constraint every_document_is_accounted_for check (documents = (added + corrected + kept)),
    constraint every_record_is_accounted_for check (records = (documents + duplicates + rejected))
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
comment on column corpus_versions.rejected is 'Records that were refused; the view rejected_records says why, for the newest version.';
comment on column corpus_versions.made_at is 'When the version was made.';

create table corpus_files (
    corpus_id      text references corpora,
    file_uri       text,
    content_sha256 text not null check (content_sha256 ~ '^[0-9a-f]{64}$'),
    records        integer check (records >= 0),
    accepted       integer check (accepted >= 0),
    duplicates     integer check (duplicates >= 0),
    rejected       integer check (rejected >= 0),
    ingested_at    timestamptz,
    size_bytes     bigint check (size_bytes >= 0),
    stamp          text,
    usable         integer check (usable >= 0),
    read_as        integer not null default 0,
    refused        jsonb not null default '{}',
    primary key (corpus_id, file_uri),
    constraint every_record_is_accounted_for check (records = (accepted + duplicates + rejected)),
    check (ingested_at is null or records is not null)
);
comment on table corpus_files is 'One row for each file of a corpus at its newest version. records = accepted + duplicates + rejected, exactly.';
comment on column corpus_files.corpus_id is 'The corpus.';
comment on column corpus_files.file_uri is 'The file, as a whole URI.';
comment on column corpus_files.content_sha256 is 'sha256 of the file''s bytes as stored (compressed, if it is).';
comment on column corpus_files.records is 'Number of lines that are not blank, plus one where the file itself is refused (empty, or broken off).';
comment on column corpus_files.accepted is 'Number of records that are documents of the corpus: the first of each text.';
comment on column corpus_files.duplicates is 'Number of records whose text another record of the corpus holds, which counts.';
comment on column corpus_files.rejected is 'Number of records that are refused; the view rejected_records counts them by reason.';
comment on column corpus_files.ingested_at is 'When the file was read last.';
comment on column corpus_files.size_bytes is 'Number of the file''s bytes as stored.';
comment on column corpus_files.stamp is 'What the source says of the bytes without reading them: ETag and size on S3; size, times of change and inode on a disk. Null where it proves nothing: the sha256 is then compared.';
comment on column corpus_files.usable is 'Number of records that are not refused when they are read: accepted, duplicates, and those that a later record with the same id replaces.';
comment on column corpus_files.read_as is 'Version of the rules by which the file was read (READING_VERSION in stages/ingestion.py); a file read by other rules is read again. -1 where one of its texts was forgotten since.';
comment on column corpus_files.refused is 'Number of records that were refused when the file was read, by reason. With those that a later record with the same id replaces: rejected.';

create table corpus_version_files (
    corpus_id      text,
    version        integer,
    file_uri       text,
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

create table corpus_documents (
    corpus_id     text references corpora,
    document_id   uuid references documents,
    ordinal       integer not null check (ordinal >= 0),
    file_uri      text not null,
    line          integer check (line >= 1),
    first_version integer default 1 check (first_version >= 1),
    left_version  integer,
    variant_id    uuid references documents,
    record_id     text,
    title         text,
    line_hash     bigint,
    primary key (corpus_id, document_id, first_version),
    constraint an_interval_is_not_empty check (left_version > first_version)
);
create index corpus_documents_by_record on corpus_documents (corpus_id, record_id) where left_version is null and record_id is not null;
create index corpus_documents_by_variant on corpus_documents (variant_id) where variant_id is not null;
create index on corpus_documents (corpus_id, file_uri);
create index on corpus_documents (document_id);
create index corpus_documents_first on corpus_documents (corpus_id, first_version);
create index corpus_documents_in_order on corpus_documents (corpus_id, ordinal);
create index corpus_documents_left on corpus_documents (corpus_id, left_version) where left_version is not null;
create unique index corpus_documents_now on corpus_documents (corpus_id, document_id) where left_version is null;
create unique index corpus_documents_now_in_order on corpus_documents (corpus_id, ordinal) where left_version is null;
comment on table corpus_documents is 'Which documents a corpus holds, from which version to which: one row for each interval. A corrected url, date or title ends an interval and starts another.';
comment on column corpus_documents.corpus_id is 'The corpus.';
comment on column corpus_documents.document_id is 'The document.';
comment on column corpus_documents.ordinal is 'The document''s place in the corpus, from 0: by file name, then by line, in the order of first ingestion. Does not change while the document is in the corpus; places of documents that left stay empty.';
comment on column corpus_documents.file_uri is 'The file with the record that counts: the first with this text. As of the newest version that holds the row.';
comment on column corpus_documents.line is 'Its line, from 1.';
comment on column corpus_documents.first_version is 'The first version with this row.';
comment on column corpus_documents.left_version is 'The first version without it; null while the newest version holds it.';
comment on column corpus_documents.variant_id is 'The row of documents with this text and the url and date of this record, where they are not those of document_id; null where they are. Tools that read url and date annotate the variant.';
comment on column corpus_documents.record_id is 'The record''s "id", if it had one.';
comment on column corpus_documents.title is 'The record''s "title", if it had one.';
comment on column corpus_documents.line_hash is 'First 64 bits of the sha256 of the line as stored in the file: the next ingestion parses only lines with another hash. Null for rows of Parquet.';

create table corpus_spare_records (
    corpus_id     text references corpora,
    file_uri      text,
    line          integer check (line >= 1),
    document_id   uuid not null references documents on delete cascade,
    record_id     text,
    url           text,
    document_date date,
    title         text,
    why           text not null check (why in ('duplicate', 'same_id_later', 'near_duplicate')),
    line_hash     bigint,
    resembles     uuid references documents on delete set null,
    primary key (corpus_id, file_uri, line),
    -- The lesser id stays, so that which text stays depends on the texts alone.
    constraint a_near_duplicate_resembles_a_lesser_id check (resembles is null or why = 'near_duplicate' and resembles < document_id)
);
create index on corpus_spare_records (corpus_id, record_id) where record_id is not null;
create index on corpus_spare_records (document_id, corpus_id);
create index on corpus_spare_records (resembles) where resembles is not null;
comment on table corpus_spare_records is 'Usable records of the newest version that are no documents of it: another record with the same text, nearly the same text or the same id counts. One of them counts again where that record disappears.';
comment on column corpus_spare_records.corpus_id is 'The corpus.';
comment on column corpus_spare_records.file_uri is 'The file.';
comment on column corpus_spare_records.line is 'The line, from 1.';
comment on column corpus_spare_records.document_id is 'The record''s text: its row in documents.';
comment on column corpus_spare_records.record_id is 'The record''s "id", if it has one.';
comment on column corpus_spare_records.url is 'The record''s "url", if it has one.';
comment on column corpus_spare_records.document_date is 'The record''s "date", if it has one.';
comment on column corpus_spare_records.title is 'The record''s "title", if it has one.';
comment on column corpus_spare_records.why is 'duplicate: an earlier record that counts, or that is a near_duplicate, has the same text. near_duplicate: the text resembles one with a lesser id. same_id_later: a later record has the same id, which is in record_id (also a row of rejected_documents).';
comment on column corpus_spare_records.line_hash is 'First 64 bits of the sha256 of the line, as in corpus_documents.';
comment on column corpus_spare_records.resembles is 'Of a near_duplicate the text that it resembles, of those with the least ids; null once that was forgotten, until the next ingestion.';

create table rejected_documents (
    corpus_id text references corpora,
    file_uri  text,
    line      integer check (line >= 0),
    reason    text not null,
    detail    text,
    primary key (corpus_id, file_uri, line)
);
comment on table rejected_documents is 'Refused records of the newest version: of each file and reason the first hundred (all that were replaced by a later record with the same id). The view rejected_records counts all.';
comment on column rejected_documents.corpus_id is 'The corpus.';
comment on column rejected_documents.file_uri is 'The file.';
comment on column rejected_documents.line is 'The line, or the row of a Parquet file, from 1; 0 where the file as a whole is refused.';
comment on column rejected_documents.reason is 'corrupt_json, not_an_object, no_text, no_field (of Parquet: a column that the address of the corpus names), text_not_a_string, empty_text, invalid_utf8, lone_surrogate, line_too_long, same_id_later, forgotten, empty_file, json_array, pretty_printed_json, delimited_text (a table, CSV), unreadable_file, expands_too_far, not_a_file or outside_corpus (a link that leads out of the corpus folder, or to where this deployment lets nobody read).';
comment on column rejected_documents.detail is 'What was found, in at most 300 characters: place and length, not the text, unless TOOLFORMER_QUOTE_REJECTED was set. Null if it quoted a text that was forgotten.';

create table forgotten_documents (
    document_id  uuid primary key,
    reason       text not null default '',
    forgotten_at timestamptz not null default now(),
    removed_at   timestamptz,
    check (removed_at >= forgotten_at)
);
create index on forgotten_documents (forgotten_at) where removed_at is null;
comment on table forgotten_documents is 'Texts that were forgotten. An ingestion refuses a record with such a text (rejected_documents.reason forgotten). Holds no text. Writer: storage/history/forgetting.py.';
comment on column forgotten_documents.document_id is 'Hash of the text, as in documents.';
comment on column forgotten_documents.reason is 'Why, as it was said to `toolformer-ops forget --reason`; empty where nothing was said.';
comment on column forgotten_documents.forgotten_at is 'When it was asked for. From then on no ingestion takes the text.';
comment on column forgotten_documents.removed_at is 'When its rows were deleted; null where that was interrupted, and the next `toolformer-ops forget` continues it.';

create table forgotten_inputs (
    tool      text,
    input_key uuid,
    primary key (tool, input_key)
);
comment on table forgotten_inputs is 'Inputs that calls in forgotten texts asked for, until their rows of call_results are deleted or another document is found to ask for them too. Empty but while something is forgotten. Writer: storage/history/forgetting.py.';
comment on column forgotten_inputs.tool is 'The tool''s name.';
comment on column forgotten_inputs.input_key is 'Key of call_results, in each version of the tool.';

create table text_sketches (
    document_id uuid primary key references documents on delete cascade,
    numbers     integer[] not null check (cardinality(numbers) = 112)
);
comment on table text_sketches is 'Sketches of texts (MinHash), by which texts that nearly repeat one another are recognised; of corpora with near_duplicates in their address. Writer: stages/ingestion.py.';
comment on column text_sketches.document_id is 'The text.';
comment on column text_sketches.numbers is 'The least of each of 112 hashes over its runs of five words: the part that is equal in two texts estimates what they share (storage/corpora/text_sketches.py).';

create table text_bands (
    band        bigint,
    document_id uuid references text_sketches on delete cascade,
    primary key (band, document_id)
);
create index on text_bands (document_id);
comment on table text_bands is 'The 14 bands of each sketch: texts with an equal band are compared. Writer: stages/ingestion.py.';
comment on column text_bands.band is 'Hash of eight numbers of the sketch, with their place.';
comment on column text_bands.document_id is 'The text.';
