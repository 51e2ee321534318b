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
comment on table finished_work is 'What a recipe has finished: every document that the corpus holds at this version below the ordinal limit has its ledger row, and its rows passed the checks. Later runs look at what joined the corpus since. Writer: stages/checking.py.';
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
comment on table checked_yields is 'What each run''s passed check of a tool counted. The check of a later version of the corpus adds what joined and subtracts what left. Writer: stages/checking.py.';
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
