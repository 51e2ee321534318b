-- The numbers of a run are stored when it finishes and do not change from then on, whatever later runs and versions of the corpus bring.
-- Writer: runs/numbers.py. Runs that finished before this migration get theirs with the next run that finishes over their corpus.

alter table annotation_runs
    add column schedule text check (schedule <> ''),
    add column previous_run_id text references annotation_runs,
    add column numbers_stored_at timestamptz,
    add column numbers_batch_id bigint;
create index on annotation_runs (corpus_id, started_at);
comment on column annotation_runs.schedule is 'The schedule that started it; null for a run started by hand.';
comment on column annotation_runs.previous_run_id is 'The run that it is compared with, chosen when it finished: the newest successful one before it over the same corpus, of the same schedule, or for a run by hand of the same model. Null where there is none.';
comment on column annotation_runs.numbers_stored_at is 'When its numbers were stored (finished_run_thresholds, finished_run_progress, finished_run_yield, finished_run_work). Null until it finishes.';
comment on column annotation_runs.numbers_batch_id is 'The newest micro-batch when the numbers were stored. A run with a newer one is being repaired: until it finishes again the views compute its numbers.';

-- Whether a run has committed a micro-batch since its numbers were stored.
create index on micro_batches (run_id, batch_id);

create table finished_run_thresholds (
    run_id           text not null,
    tool             text not null,
    threshold        double precision not null,
    calls            bigint not null check (calls >= 0),
    texts            bigint not null check (texts >= 0),
    releasable_calls bigint not null check (releasable_calls >= 0),
    primary key (run_id, tool, threshold),
    foreign key (run_id, tool) references run_tools
);
comment on table finished_run_thresholds is 'The rows of the view threshold_counts for finished runs.';
comment on column finished_run_thresholds.run_id is 'The run.';
comment on column finished_run_thresholds.tool is 'The tool''s name.';
comment on column finished_run_thresholds.threshold is 'tau_f, nats.';
comment on column finished_run_thresholds.calls is 'Number of scored calls with loss_reduction >= threshold.';
comment on column finished_run_thresholds.texts is 'Number of texts with at least one of them.';
comment on column finished_run_thresholds.releasable_calls is 'Of calls those whose input does not occur only after them.';

create table finished_run_progress (
    run_id text not null,
    tool   text not null,
    step   integer not null,
    stage  text not null check (stage in ('filter', 'sample', 'execute', 'score')),
    done   bigint not null check (done >= 0),
    total  bigint not null check (total >= 0),
    primary key (run_id, tool, stage),
    foreign key (run_id, tool) references run_tools
);
comment on table finished_run_progress is 'The rows of the view annotation_progress for finished runs.';
comment on column finished_run_progress.run_id is 'The run.';
comment on column finished_run_progress.tool is 'The tool''s name.';
comment on column finished_run_progress.step is 'Order of the stages, 1 to 4.';
comment on column finished_run_progress.stage is 'filter, sample, execute or score.';
comment on column finished_run_progress.done is 'Documents with a row in stage_ledger.';
comment on column finished_run_progress.total is 'filter: the run''s documents; the others: those with a kept paragraph.';

create table finished_run_yield (
    run_id    text not null,
    tool      text not null,
    step      integer not null,
    stage     text not null,
    reason    text not null,
    is_loss   boolean not null,
    count     bigint not null,
    documents bigint,
    primary key (run_id, tool, stage, reason),
    foreign key (run_id, tool) references run_tools
);
comment on table finished_run_yield is 'The rows of the view yield_by_stage for finished runs.';
comment on column finished_run_yield.run_id is 'The run.';
comment on column finished_run_yield.tool is 'The tool''s name.';
comment on column finished_run_yield.step is 'Order of the stages, 1 to 6.';
comment on column finished_run_yield.stage is 'filter, sample, execute, score, keep or release.';
comment on column finished_run_yield.reason is 'What is counted, or the reason for a loss.';
comment on column finished_run_yield.is_loss is 'Whether the row counts a loss.';
comment on column finished_run_yield.count is 'How many, in the unit of the stage.';
comment on column finished_run_yield.documents is 'For a count of the ledger, the documents whose ledger row has it; else null. Tells a later run, which adds what joined and subtracts what left, whether the count still occurs.';

create table finished_run_work (
    run_id        text not null,
    tool          text not null,
    stage         text not null check (stage in ('filter', 'sample', 'execute', 'score')),
    micro_batches bigint not null check (micro_batches >= 0),
    documents     bigint not null check (documents >= 0),
    rows_written  bigint not null check (rows_written >= 0),
    seconds       double precision not null check (seconds >= 0),
    primary key (run_id, tool, stage),
    foreign key (run_id, tool) references run_tools
);
comment on table finished_run_work is 'What a finished run did itself: sums of its rows in micro_batches.';
comment on column finished_run_work.run_id is 'The run.';
comment on column finished_run_work.tool is 'The tool''s name.';
comment on column finished_run_work.stage is 'filter, sample, execute or score.';
comment on column finished_run_work.micro_batches is 'Micro-batches that it committed.';
comment on column finished_run_work.documents is 'Documents that it finished.';
comment on column finished_run_work.rows_written is 'Rows that it wrote.';
comment on column finished_run_work.seconds is 'Seconds of work.';
