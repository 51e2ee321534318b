-- What an ingestion keeps to make the next version from the changed files alone: what each file's source says of its bytes, and the
-- records that do not count now but will where the record before them disappears. Writer: stages/ingestion.py.

alter table corpus_files
    add column size_bytes bigint check (size_bytes >= 0),
    add column stamp text,
    add column usable integer check (usable >= 0),
    add column read_as integer not null default 0;
comment on table corpus_files is 'One row for each file of a corpus at its newest version. records = accepted + duplicates + rejected, exactly.';
comment on column corpus_files.accepted is 'Number of records that are documents of the corpus: the first of each text.';
comment on column corpus_files.duplicates is 'Number of records whose text another record of the corpus holds, which counts.';
comment on column corpus_files.size_bytes is 'Number of the file''s bytes as stored. Null for files read before migration 0017.';
comment on column corpus_files.stamp is 'What the source says of the bytes without reading them: ETag and size on S3; size, times of change and inode on a disk. Null where it proves nothing: the sha256 is then compared.';
comment on column corpus_files.usable is 'Number of records that are not refused when they are read: accepted, duplicates, and those that a later record with the same id replaces.';
comment on column corpus_files.read_as is 'Version of the rules by which the file was read (READING_VERSION in stages/ingestion.py); a file read by other rules is read again. -1 where one of its texts was forgotten since.';
comment on column corpus_files.ingested_at is 'When the file was read last.';

create table corpus_spare_records (
    corpus_id     text not null references corpora,
    file_uri      text not null,
    line          integer not null check (line >= 1),
    document_id   uuid not null references documents on delete cascade,
    record_id     text,
    url           text,
    document_date date,
    title         text,
    why           text not null check (why in ('duplicate', 'same_id_later')),
    primary key (corpus_id, file_uri, line)
);
create index on corpus_spare_records (document_id, corpus_id);
create index on corpus_spare_records (corpus_id, record_id) where record_id is not null;
comment on table corpus_spare_records is 'Usable records of the newest version that are no documents of it: another record with the same text or the same id counts. One of them counts again where that record disappears.';
comment on column corpus_spare_records.corpus_id is 'The corpus.';
comment on column corpus_spare_records.file_uri is 'The file.';
comment on column corpus_spare_records.line is 'The line, from 1.';
comment on column corpus_spare_records.document_id is 'The record''s text: its row in documents.';
comment on column corpus_spare_records.record_id is 'The record''s "id", if it has one.';
comment on column corpus_spare_records.url is 'The record''s "url", if it has one.';
comment on column corpus_spare_records.document_date is 'The record''s "date", if it has one.';
comment on column corpus_spare_records.title is 'The record''s "title", if it has one.';
comment on column corpus_spare_records.why is 'duplicate: an earlier record that counts has the same text. same_id_later: a later record has the same id (also a row of rejected_documents).';

comment on column corpus_documents.file_uri is 'The file with the record that counts: the first with this text. As of the newest version that holds the row.';
comment on column corpus_documents.line is 'Its line, from 1. Null for rows from before migration 0011 whose file was changed later and no longer contained the text.';
comment on table rejected_documents is 'One row for each record of the newest version that was refused, and why.';
comment on column rejected_documents.line is 'The line, or the row of a Parquet file, from 1; 0 where the file as a whole is refused.';
comment on column rejected_documents.reason is 'corrupt_json, not_an_object, no_text, text_not_a_string, empty_text, invalid_utf8, lone_surrogate, line_too_long, same_id_later, forgotten, empty_file or unreadable_file.';
comment on column corpora.created_at is 'When its first version was made.';

create function variant_id_of(document uuid, url text, day date)
    returns uuid
    language sql immutable parallel safe
    return encode(substring(sha256(
        int8send(36) || convert_to(document::text, 'UTF8')
        || int8send(octet_length(coalesce(url, ''))) || convert_to(coalesce(url, ''), 'UTF8')
        || int8send(case when day is null then 0 else 10 end) || convert_to(coalesce(to_char(day, 'YYYY-MM-DD'), ''), 'UTF8')
    ) from 1 for 16), 'hex')::uuid;
comment on function variant_id_of(uuid, text, date) is 'Id of the variant of a document with this url and date: content_uuid(document, url, day) in Python, with '''' for null. Stored in documents, with variant_of.';
