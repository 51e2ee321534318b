-- The numbers of runs that have ended, stored once.

create table finished_work (
    recipe_id     text,
    corpus_id     text references corpora,
    version       integer,
    ordinal_limit integer check (ordinal_limit >= 0),
    run_id        text not null references annotation_runs,
    finished_at   timestamptz not null default now(),
    primary key (recipe_id, corpus_id, version, ordinal_limit)
);
comment on table finished_work is 'What a recipe has finished: every document that the corpus holds at this version below the ordinal limit has its ledger row, and its rows passed the checks. Later runs look at what joined the corpus since. Writer: audit/checking.py.';
comment on column finished_work.recipe_id is 'The recipe of a stage: filter, sample, execute, score or placebo.';
comment on column finished_work.corpus_id is 'The corpus.';
comment on column finished_work.version is 'Its version.';
comment on column finished_work.ordinal_limit is 'Documents with an ordinal below it; 2147483647 for all.';
comment on column finished_work.run_id is 'The run whose check found it so first.';
comment on column finished_work.finished_at is 'When.';

create table finished_run_progress (
    run_id text,
    tool   text,
    step   integer not null,
    stage  text check (stage in ('filter', 'sample', 'execute', 'score', 'placebo')),
    done   bigint not null check (done >= 0),
    total  bigint not null check (total >= 0),
    primary key (run_id, tool, stage),
    foreign key (run_id, tool) references run_tools
);
comment on table finished_run_progress is 'The rows of the view annotation_progress for finished runs.';
comment on column finished_run_progress.run_id is 'The run.';
comment on column finished_run_progress.tool is 'The tool''s name.';
comment on column finished_run_progress.step is 'Order of the stages, 1 to 5.';
comment on column finished_run_progress.stage is 'filter, sample, execute, score or placebo.';
comment on column finished_run_progress.done is 'Documents with a row in stage_ledger.';
comment on column finished_run_progress.total is 'filter: the run''s documents; the others: those with a kept paragraph.';

create table finished_run_yield (
    run_id    text,
    tool      text,
    step      integer not null,
    stage     text,
    reason    text,
    is_loss   boolean not null,
    count     bigint not null,
    documents bigint,
    primary key (run_id, tool, stage, reason),
    foreign key (run_id, tool) references run_tools
);
comment on table finished_run_yield is 'The rows of the view yield_by_stage for finished runs.';
comment on column finished_run_yield.run_id is 'The run.';
comment on column finished_run_yield.tool is 'The tool''s name.';
comment on column finished_run_yield.step is 'Order of the stages, 1 to 7.';
comment on column finished_run_yield.stage is 'filter, sample, execute, score, placebo, keep or release.';
comment on column finished_run_yield.reason is 'What is counted, or the reason for a loss.';
comment on column finished_run_yield.is_loss is 'Whether the row counts a loss.';
comment on column finished_run_yield.count is 'How many, in the unit of the stage.';
comment on column finished_run_yield.documents is 'For a count of the ledger, the documents whose ledger row has it; else null. Tells a later run, which adds what joined and subtracts what left, whether the count still occurs.';

create table finished_run_work (
    run_id        text,
    tool          text,
    stage         text check (stage in ('filter', 'sample', 'execute', 'score', 'placebo')),
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
comment on column finished_run_work.stage is 'filter, sample, execute, score or placebo.';
comment on column finished_run_work.micro_batches is 'Micro-batches that it committed.';
comment on column finished_run_work.documents is 'Documents that it finished.';
comment on column finished_run_work.rows_written is 'Rows that it wrote.';
comment on column finished_run_work.seconds is 'Seconds of work.';

create table finished_run_thresholds (
    run_id           text,
    tool             text,
    threshold        double precision,
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

create table finished_run_reductions (
    run_id           text,
    tool             text,
    bucket           integer,
    calls            bigint not null check (calls >= 0),
    texts            bigint not null check (texts >= 0),
    releasable_calls bigint not null check (releasable_calls >= 0),
    placebos         bigint not null check (placebos >= 0),
    primary key (run_id, tool, bucket),
    foreign key (run_id, tool) references run_tools
);
comment on table finished_run_reductions is 'The rows of the view reduction_histogram for finished runs. Writer: runs/numbers.py.';
comment on column finished_run_reductions.run_id is 'The run.';
comment on column finished_run_reductions.tool is 'The tool''s name.';
comment on column finished_run_reductions.bucket is 'Loss reductions from bucket / 20 nats to below (bucket + 1) / 20.';
comment on column finished_run_reductions.calls is 'Calls that save so much, and carry tau_information where the run has such a bound.';
comment on column finished_run_reductions.texts is 'Texts whose best such call saves so much.';
comment on column finished_run_reductions.releasable_calls is 'Of calls those whose input does not occur only after them.';
comment on column finished_run_reductions.placebos is 'Sampled placebos that save so much, and carry tau_information where the run has such a bound.';

create table checked_yields (
    run_id           text,
    tool             text,
    judged_calls     bigint not null,
    kept_calls       bigint not null,
    kept_texts       bigint not null check (kept_texts >= 0),
    releasable_calls bigint,
    primary key (run_id, tool),
    foreign key (run_id, tool) references run_tools,
    check (judged_calls >= kept_calls),
    check (kept_calls >= kept_texts),
    check (releasable_calls >= 0 and releasable_calls <= kept_calls)
);
comment on table checked_yields is 'What each run''s passed check of a tool counted. The check of a later version of the corpus adds what joined and subtracts what left. Writer: audit/checking.py.';
comment on column checked_yields.run_id is 'The run.';
comment on column checked_yields.tool is 'The tool''s name.';
comment on column checked_yields.judged_calls is 'Calls whose losses were computed or provably are below prune_below (reason null or pruned_below).';
comment on column checked_yields.kept_calls is 'Of these those kept at the run''s keep_threshold.';
comment on column checked_yields.kept_texts is 'Documents with at least one kept call.';
comment on column checked_yields.releasable_calls is 'Of the kept calls those that may be released: their input stands not only after them.';

create table placebo_counts (
    run_id    text,
    tool      text,
    threshold double precision,
    placebos  integer check (placebos >= 0),
    calls     integer check (calls >= 0),
    documents bigint not null check (documents >= 0),
    primary key (run_id, tool, threshold, placebos, calls),
    foreign key (run_id, tool) references run_tools
);
comment on table placebo_counts is 'How many documents of a run have so many sampled placebos and so many calls that the run''s keep rule keeps at a threshold: what the interval of the false-discovery rate is resampled from. Documents with neither are not counted. Writer: runs/placebo_rates.py.';
comment on column placebo_counts.run_id is 'The run.';
comment on column placebo_counts.tool is 'The tool''s name.';
comment on column placebo_counts.threshold is 'tau_f, nats.';
comment on column placebo_counts.placebos is 'Sampled placebos of a document that the rule would keep.';
comment on column placebo_counts.calls is 'Calls of a document that the rule keeps.';
comment on column placebo_counts.documents is 'How many documents have these two numbers.';

create table placebo_rates (
    run_id               text,
    tool                 text,
    threshold            double precision,
    placebo_recipe_id    text not null,
    calls                bigint not null check (calls >= 0),
    placebos             bigint not null check (placebos >= 0),
    placebos_scored      bigint not null,
    calls_sampled        bigint not null,
    false_discovery_rate double precision check (false_discovery_rate >= 0 and false_discovery_rate <= 1),
    rate_low             double precision check (rate_low >= 0),
    rate_high            double precision,
    counted_at           timestamptz not null default now(),
    primary key (run_id, tool, threshold),
    foreign key (run_id, tool) references run_tools,
    check (placebos_scored >= placebos),
    check (calls_sampled >= placebos_scored),
    constraint placebo_rates_rate_high_check check (rate_high >= rate_low and rate_high <= 1)
);
comment on table placebo_rates is 'The false-discovery rate of a tool in a run at a threshold (docs/placebo.md). Written by the tool''s check and at the end of the run; does not change after that. Writer: runs/placebo_rates.py.';
comment on column placebo_rates.run_id is 'The run.';
comment on column placebo_rates.tool is 'The tool''s name.';
comment on column placebo_rates.threshold is 'tau_f, nats.';
comment on column placebo_rates.placebo_recipe_id is 'The placebos that it was counted from.';
comment on column placebo_rates.calls is 'Calls that the run''s keep rule keeps at the threshold.';
comment on column placebo_rates.placebos is 'Sampled placebos that the same rule would keep.';
comment on column placebo_rates.placebos_scored is 'Sampled calls that have a placebo.';
comment on column placebo_rates.calls_sampled is 'Sampled calls; those without another result to draw included.';
comment on column placebo_rates.false_discovery_rate is 'Placebos expected among all calls with a result, over calls: (placebos / placebos_scored) (calls_sampled / sample_share) / calls, at most 1. Null where a divisor is 0.';
comment on column placebo_rates.rate_low is 'Lower end of the 95 % interval, by resampling documents.';
comment on column placebo_rates.rate_high is 'Upper end.';
comment on column placebo_rates.counted_at is 'When.';

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
comment on table history_files is 'The files of the history, which history/manifest.json lists for readers. A row is committed before its file is sent and deleted after its file: what a killed process leaves is known. Writer: storage/history/history.py.';
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
comment on table history_documents is 'Which file of the history holds the rows of a document under a recipe. Documents without rows have none. Writer: storage/history/history.py.';
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
comment on table history_work is 'What of a recipe is in the history: every document that the corpus holds at this version below the ordinal limit, if it has rows. Later runs look at what joined since. Writer: storage/history/history.py.';
comment on column history_work.recipe_id is 'The recipe.';
comment on column history_work.corpus_id is 'The corpus.';
comment on column history_work.version is 'Its version.';
comment on column history_work.ordinal_limit is 'Documents with an ordinal below it; 2147483647 for all.';

create table history_runs (
    run_id            text primary key references annotation_runs,
    numbers_stored_at timestamptz not null,
    written_at        timestamptz not null default now()
);
comment on table history_runs is 'The runs whose rows are all in the history. Writer: storage/history/history.py.';
comment on column history_runs.run_id is 'The run.';
comment on column history_runs.numbers_stored_at is 'As in annotation_runs: a run that ended again since is written again.';
comment on column history_runs.written_at is 'When it was written.';

create table forgotten_numbers (
    number       bigint generated always as identity primary key,
    run_id       text not null,
    tool         text not null,
    kind         text not null check (kind in ('finished_run', 'placebo_counts')),
    document_ids uuid[] not null,
    numbers      jsonb not null,
    forgotten_at timestamptz not null default now(),
    foreign key (run_id, tool) references run_tools
);
create index on forgotten_numbers (run_id, tool);
comment on table forgotten_numbers is 'What texts that were forgotten had of the stored numbers of a run, for later runs whose numbers follow from these: of each recipe, keep rule and document limit for the newest run. The numbers of the run itself, which people see, do not change. Writer: storage/history/forgetting.py.';
comment on column forgotten_numbers.number is 'In the order in which they were forgotten.';
comment on column forgotten_numbers.run_id is 'The run.';
comment on column forgotten_numbers.tool is 'The tool''s name.';
comment on column forgotten_numbers.kind is 'finished_run: of its rows in finished_run_thresholds, _reductions, _progress and _yield. placebo_counts: of the sampled calls in placebo_rates.';
comment on column forgotten_numbers.document_ids is 'The texts that were forgotten together, also those that the run did not hold.';
comment on column forgotten_numbers.numbers is 'Their sums, each below 0 or 0: thresholds, reductions, progress and yield, each a list of rows; or sampled and scored.';
comment on column forgotten_numbers.forgotten_at is 'When.';
