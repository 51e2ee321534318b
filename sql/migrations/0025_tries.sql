-- A text that kills the process that works on it, so that nobody can say what happened: which micro-batches were at work when their process
-- died, and which documents were given up. Writer: runs/tries.py.

create table micro_batch_tries (
    try_id       bigint generated always as identity primary key,
    run_id       text not null,
    tool         text not null,
    stage        text not null check (stage in ('filter', 'sample', 'execute', 'score')),
    recipe_id    text not null,
    document_ids uuid[] not null check (cardinality(document_ids) > 0),
    started_at   timestamptz not null default now()
);
comment on table micro_batch_tries is 'The micro-batches at work. A row is committed before the work starts and deleted with the commit of the micro-batch, or by a process that ends in order. So a row whose process is gone says that the process was killed at this work.';
comment on column micro_batch_tries.try_id is 'Its number.';
comment on column micro_batch_tries.run_id is 'The run that works on it.';
comment on column micro_batch_tries.tool is 'The tool''s name.';
comment on column micro_batch_tries.stage is 'filter, sample, execute or score.';
comment on column micro_batch_tries.recipe_id is 'The recipe of the stage.';
comment on column micro_batch_tries.document_ids is 'The documents of the micro-batch.';
comment on column micro_batch_tries.started_at is 'When the work started.';

create table failed_documents (
    recipe_id   text not null,
    document_id uuid not null,
    stage       text not null check (stage in ('filter', 'sample', 'execute', 'score')),
    tool        text not null,
    reason      text not null check (reason <> ''),
    deaths      integer not null check (deaths >= 0),
    run_id      text not null,
    failed_at   timestamptz not null default now(),
    primary key (recipe_id, document_id, stage)
);
comment on table failed_documents is 'Documents that a stage has given up. Each has its ledger row, with the reason among its counts, and no call of it is kept. `toolformer-ops retry-failed` deletes the row, so that the next run tries the document again.';
comment on column failed_documents.recipe_id is 'The recipe of the stage.';
comment on column failed_documents.document_id is 'The document, or the variant of it that the tool reads.';
comment on column failed_documents.stage is 'filter, sample, execute or score.';
comment on column failed_documents.tool is 'The tool''s name.';
comment on column failed_documents.reason is 'process_killed: it killed its process again and again, at last alone (mostly for lack of memory). out_of_memory: alone it does not fit into the memory of the device.';
comment on column failed_documents.deaths is 'How many processes died while they worked on it.';
comment on column failed_documents.run_id is 'The run that gave it up.';
comment on column failed_documents.failed_at is 'When.';
