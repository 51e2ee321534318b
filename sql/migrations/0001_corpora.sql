-- What was read: documents, the corpora they came from, and what was refused.
-- Writer: stages/ingestion.py. A document's id is a hash of its text, so equal texts of all corpora are one row.

create table documents (
    document_id        uuid primary key,
    text               text not null check (text <> ''),
    url                text,
    document_date      date,
    title              text,
    escaped_characters integer not null default 0 check (escaped_characters >= 0),
    created_at         timestamptz not null default now()
);
comment on table documents is 'One row a text, whatever number of corpora hold it. Never updated: the first record met gives url, date and title.';
comment on column documents.document_id is 'Hash of the text: first 128 bits of a sha256 (records.document_id_of).';
comment on column documents.text is 'The text as it is annotated: the record''s text with control characters replaced by their visible pictures. All character offsets of other tables count its Unicode code points from 0.';
comment on column documents.url is 'The record''s "url", if it had one.';
comment on column documents.document_date is 'The record''s "date", if it had one that reads as a day. Dates inside the url are the Calendar tool''s business.';
comment on column documents.title is 'The record''s "title", if it had one.';
comment on column documents.escaped_characters is 'Number of control characters of the record''s text that were replaced (U+0001 by U+2401 and so on).';
comment on column documents.created_at is 'When the row was written.';

create table corpora (
    corpus_id  text primary key check (corpus_id ~ '^[0-9a-f]{16}$'),
    uri        text not null unique,
    created_at timestamptz not null default now()
);
comment on table corpora is 'One row a corpus: a file or a folder of JSONL files that was ingested.';
comment on column corpora.corpus_id is 'First 16 hex digits of the sha256 of uri.';
comment on column corpora.uri is 'Where the corpus lies: file:///... or s3://bucket/prefix, without a closing slash.';
comment on column corpora.created_at is 'When the corpus was first ingested.';

create table corpus_files (
    corpus_id      text not null references corpora,
    file_uri       text not null,
    content_sha256 text not null check (content_sha256 ~ '^[0-9a-f]{64}$'),
    records        integer check (records >= 0),
    accepted       integer check (accepted >= 0),
    duplicates     integer check (duplicates >= 0),
    rejected       integer check (rejected >= 0),
    ingested_at    timestamptz,
    primary key (corpus_id, file_uri),
    check (ingested_at is null or records is not null),
    constraint every_record_is_accounted_for check (records = accepted + duplicates + rejected)
);
comment on table corpus_files is 'One row a file of a corpus. records = accepted + duplicates + rejected, exactly. A row without ingested_at is being read, or its reading was cut off and goes on with the next ingestion.';
comment on column corpus_files.corpus_id is 'The corpus.';
comment on column corpus_files.file_uri is 'The file, as a whole URI.';
comment on column corpus_files.content_sha256 is 'sha256 of the file''s bytes as stored (compressed, if it is).';
comment on column corpus_files.records is 'Number of lines that are not blank, plus one where the file itself is refused (empty, or broken off).';
comment on column corpus_files.accepted is 'Number of records that became documents of the corpus.';
comment on column corpus_files.duplicates is 'Number of records whose text an earlier record of the corpus has already.';
comment on column corpus_files.rejected is 'Number of rows in rejected_documents.';
comment on column corpus_files.ingested_at is 'When the file was read to its end; null before that.';

create table corpus_documents (
    corpus_id   text not null references corpora,
    document_id uuid not null references documents,
    ordinal     integer not null check (ordinal >= 0),
    file_uri    text not null,
    line        integer check (line >= 1),
    primary key (corpus_id, document_id),
    unique (corpus_id, ordinal)
);
create index on corpus_documents (corpus_id, file_uri);
create index on corpus_documents (document_id);
comment on table corpus_documents is 'Which documents a corpus holds. A run annotates those with ordinal < its document limit.';
comment on column corpus_documents.corpus_id is 'The corpus.';
comment on column corpus_documents.document_id is 'The document.';
comment on column corpus_documents.ordinal is 'The document''s place in the corpus, from 0: by file name, then by line, in the order of first ingestion. Never changes.';
comment on column corpus_documents.file_uri is 'The file where the text was met first.';
comment on column corpus_documents.line is 'Its line, from 1. Null where the file has changed since and holds the text no longer.';

create table rejected_documents (
    corpus_id text not null references corpora,
    file_uri  text not null,
    line      integer not null check (line >= 0),
    reason    text not null,
    detail    text,
    primary key (corpus_id, file_uri, line)
);
comment on table rejected_documents is 'One row a record that was refused, and why.';
comment on column rejected_documents.corpus_id is 'The corpus.';
comment on column rejected_documents.file_uri is 'The file.';
comment on column rejected_documents.line is 'The line, from 1; 0 where the file as a whole is refused.';
comment on column rejected_documents.reason is 'corrupt_json, not_an_object, no_text, text_not_a_string, empty_text, invalid_utf8, lone_surrogate, line_too_long, empty_file or unreadable_file.';
comment on column rejected_documents.detail is 'What was found, in at most 300 characters.';
