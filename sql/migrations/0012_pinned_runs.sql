-- A run is pinned to a version of its corpus. The ledger knows which run did each piece of work, and up to which version a recipe's
-- work is finished, so that a night looks at what is new alone. Writers: stages/run_setup.py, runs/micro_batches.py, stages/checking.py.

alter table annotation_runs
    add column corpus_version integer not null default 1 check (corpus_version >= 1),
    add column ordinal_limit integer check (ordinal_limit >= 0);
alter table annotation_runs alter column corpus_version drop default;  -- a new run says which
update annotation_runs set ordinal_limit = document_limit where document_limit is not null;
comment on column annotation_runs.corpus_version is 'The version of the corpus that it annotates. Runs from before migration 0012: version 1.';
comment on column annotation_runs.document_limit is 'Number of documents annotated: the first of the corpus at its version; null for all.';
comment on column annotation_runs.ordinal_limit is 'The documents annotated are those with an ordinal below it; null for all.';

alter table run_tools add column reads_record boolean not null default false;
comment on column run_tools.reads_record is 'Whether the tool reads the url and date of a record besides its text: its rows are then those of the variant (run_tool_documents.variant_id).';

create table finished_work (
    recipe_id     text not null,
    corpus_id     text not null references corpora,
    version       integer not null,
    ordinal_limit integer not null check (ordinal_limit >= 0),
    run_id        text not null references annotation_runs,
    finished_at   timestamptz not null default now(),
    primary key (recipe_id, corpus_id, version, ordinal_limit)
);
comment on table finished_work is 'What a recipe has finished: every document that the corpus holds at this version below the ordinal limit has its ledger row, and its rows passed the checks. Later runs look at what joined the corpus since. Writer: stages/checking.py.';
comment on column finished_work.recipe_id is 'The recipe of a stage: filter, sample, execute or score.';
comment on column finished_work.corpus_id is 'The corpus.';
comment on column finished_work.version is 'Its version.';
comment on column finished_work.ordinal_limit is 'Documents with an ordinal below it; 2147483647 for all.';
comment on column finished_work.run_id is 'The run whose check found it so first.';
comment on column finished_work.finished_at is 'When.';

create table micro_batches (
    batch_id     bigint generated always as identity primary key,
    run_id       text not null references annotation_runs,
    tool         text not null,
    stage        text not null check (stage in ('filter', 'sample', 'execute', 'score')),
    recipe_id    text not null,
    documents    integer not null check (documents >= 0),
    rows_written integer not null check (rows_written >= 0),
    counts       jsonb not null default '{}' check (jsonb_typeof(counts) = 'object'),
    seconds      double precision not null default 0 check (seconds >= 0),
    committed_at timestamptz not null default now()
);
create index on micro_batches (run_id, tool, stage);
create index on micro_batches (recipe_id, committed_at);
comment on table micro_batches is 'What each run did itself: one row for each micro-batch that it committed, with the sums of its ledger rows. Writer: runs/micro_batches.py.';
comment on column micro_batches.batch_id is 'Number of the micro-batch; stage_ledger.batch_id.';
comment on column micro_batches.run_id is 'The run that did the work.';
comment on column micro_batches.tool is 'The tool''s name.';
comment on column micro_batches.stage is 'filter, sample, execute or score.';
comment on column micro_batches.recipe_id is 'The stage''s recipe.';
comment on column micro_batches.documents is 'Documents finished.';
comment on column micro_batches.rows_written is 'Sum of the ledger rows'' rows_written.';
comment on column micro_batches.counts is 'Sums of the ledger rows'' counts.';
comment on column micro_batches.seconds is 'Sum of the ledger rows'' seconds.';
comment on column micro_batches.committed_at is 'When it was committed.';

alter table stage_ledger add column batch_id bigint;
comment on column stage_ledger.batch_id is 'The micro-batch in which the document was finished (micro_batches, which names the run). Null for work from before migration 0012.';
