-- Rows of finished runs are written as Parquet files on S3, so that an engine made for it answers questions about history.

create table history_files (
    file_key   text primary key check (file_key like 'history/%'),
    table_name text not null,
    owner_id   text not null,
    state      text not null check (state in ('writing', 'whole', 'stale', 'leaving')),
    sha256     text not null check (sha256 ~ '^[0-9a-f]{64}$'),
    size_bytes bigint not null check (size_bytes >= 0),
    rows       bigint not null check (rows >= 0),
    version    integer check (version >= 1),
    written_at timestamptz not null default now()
);
create index on history_files (table_name, owner_id);
comment on table history_files is 'The files of the history, which history/manifest.json lists for readers. A row is committed before its file is sent and deleted after its file: what a killed process leaves is known. Writer: storage/history.py.';
comment on column history_files.file_key is 'Key of the file in the bucket: its table, its owner and its content.';
comment on column history_files.table_name is 'The table whose rows it holds.';
comment on column history_files.owner_id is 'Whose rows these are: a recipe, a corpus or a release; catalog for small tables, which each write holds whole.';
comment on column history_files.state is 'writing: it is being sent. whole: the manifest names it. stale: likewise, and rows in it are to be taken out, as history_documents lacks their texts. leaving: the manifest no longer names it, and it is to be deleted.';
comment on column history_files.sha256 is 'sha256 of its bytes.';
comment on column history_files.size_bytes is 'Number of its bytes.';
comment on column history_files.rows is 'Number of its rows.';
comment on column history_files.version is 'Of a corpus: the last version whose changes it holds. Else null.';
comment on column history_files.written_at is 'When it was made.';

create table history_documents (
    recipe_id   text,
    document_id uuid,
    file_key    text not null references history_files on update cascade,
    primary key (recipe_id, document_id)
);
create index on history_documents (file_key);
create index on history_documents (document_id);
comment on table history_documents is 'Which file of the history holds the rows of a document under a recipe. Documents without rows have none. Writer: storage/history.py.';
comment on column history_documents.recipe_id is 'The recipe of the sampling, scoring or placebos.';
comment on column history_documents.document_id is 'The document, or the variant of it that the tool reads.';
comment on column history_documents.file_key is 'The file.';

create table history_work (
    recipe_id     text,
    corpus_id     text references corpora,
    version       integer,
    ordinal_limit integer check (ordinal_limit >= 0),
    primary key (recipe_id, corpus_id, version, ordinal_limit)
);
comment on table history_work is 'What of a recipe is in the history: every document that the corpus holds at this version below the ordinal limit, if it has rows. Later runs look at what joined since. Writer: storage/history.py.';
comment on column history_work.recipe_id is 'The recipe.';
comment on column history_work.corpus_id is 'The corpus.';
comment on column history_work.version is 'Its version.';
comment on column history_work.ordinal_limit is 'Documents with an ordinal below it; 2147483647 for all.';

create table history_runs (
    run_id            text primary key references annotation_runs,
    numbers_stored_at timestamptz not null,
    written_at        timestamptz not null default now()
);
comment on table history_runs is 'The runs whose rows are all in the history. Writer: storage/history.py.';
comment on column history_runs.run_id is 'The run.';
comment on column history_runs.numbers_stored_at is 'As in annotation_runs: a run that ended again since is written again.';
comment on column history_runs.written_at is 'When it was written.';
