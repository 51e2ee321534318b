-- A text can be forgotten: it and what was derived from it are deleted, and what remains says so without holding any text. Releases and
-- models that hold it can be withdrawn from S3, and the rows of recipes that nothing uses can be dropped.
-- Writers: storage/forgetting.py, storage/retention.py.

create table forgotten_documents (
    document_id  uuid primary key,
    reason       text not null default '',
    forgotten_at timestamptz not null default now(),
    removed_at   timestamptz check (removed_at >= forgotten_at)
);
create index on forgotten_documents (forgotten_at) where removed_at is null;
comment on table forgotten_documents is 'Texts that were forgotten. An ingestion refuses a record with such a text (rejected_documents.reason forgotten). Holds no text. Writer: storage/forgetting.py.';
comment on column forgotten_documents.document_id is 'Hash of the text, as in documents.';
comment on column forgotten_documents.reason is 'Why, as it was said to `toolformer-ops forget --reason`; empty where nothing was said.';
comment on column forgotten_documents.forgotten_at is 'When it was asked for. From then on no ingestion takes the text.';
comment on column forgotten_documents.removed_at is 'When its rows were deleted; null where that was interrupted, and the next `toolformer-ops forget` continues it.';

create table forgotten_inputs (
    tool      text not null,
    input_key uuid not null,
    primary key (tool, input_key)
);
comment on table forgotten_inputs is 'Inputs that calls in forgotten texts asked for, until their rows of call_results are deleted or another document is found to ask for them too. Empty but while something is forgotten. Writer: storage/forgetting.py.';
comment on column forgotten_inputs.tool is 'The tool''s name.';
comment on column forgotten_inputs.input_key is 'Key of call_results, in each version of the tool.';

alter table dataset_releases add column withdrawn_at timestamptz;
alter table finetuned_models add column withdrawn_at timestamptz;
comment on column dataset_releases.withdrawn_at is 'When its files were deleted from S3 (`toolformer-ops forget --release`); null while they are there. The row stays, as the record of what was released.';
comment on column finetuned_models.withdrawn_at is 'When its files were deleted from S3 (`toolformer-ops forget --model`); null while they are there. The row stays, as the record of what was trained.';

alter table recipes add column dropped_at timestamptz;
comment on column recipes.dropped_at is 'When its rows were dropped last (`toolformer-ops retention`); null where they never were. A run that uses the recipe again computes them again.';

-- Documents are deleted now. For each of them this key would read the whole table, which has no index that begins with document_id.
alter table filter_decisions drop constraint filter_decisions_document_id_fkey;
