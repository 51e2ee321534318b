-- Runs, their recipes, and the ledger of what is done.

create table recipes (
    recipe_id        text primary key check (recipe_id ~ '^[0-9a-f]{16}$'),
    stage            text not null,
    tool             text not null,
    parent_recipe_id text references recipes,
    definition       jsonb not null,
    created_at       timestamptz not null default now(),
    dropped_at       timestamptz
);
comment on table recipes is 'One row for all that determines the output of a stage. Rows of the same recipe are the same work, shared by all runs that use it.';
comment on column recipes.recipe_id is 'First 16 hex digits of the sha256 of the definition, the parent''s id included.';
comment on column recipes.stage is 'filter, sample, execute, score or placebo.';
comment on column recipes.tool is 'The tool''s name.';
comment on column recipes.parent_recipe_id is 'The recipe of the stage before, whose output this one reads; null for filter.';
comment on column recipes.definition is 'What was hashed: the versions of code and tool, the text of the prompt, the model''s identity and number format, and every choice of the stage by its name (runs/choices.py), such as definition ->> ''temperature''.';
comment on column recipes.created_at is 'When a run used it first.';
comment on column recipes.dropped_at is 'When its rows were dropped last (`toolformer-ops retention`); null where they never were. A run that uses the recipe again computes them again.';

create table annotation_runs (
    run_id             text primary key check (run_id <> ''),
    corpus_id          text not null check (corpus_id ~ '^[0-9a-f]{16}$'),
    corpus_uri         text not null,
    tools              text[] not null,
    document_limit     integer check (document_limit > 0),
    parameters         jsonb not null default '{}',
    model_identity     text,
    code_version       text,
    image              text,
    state              text not null default 'running' check (state in ('running', 'success', 'failed')),
    started_at         timestamptz not null default now(),
    finished_at        timestamptz,
    estimate           jsonb check (jsonb_typeof(estimate) = 'object'),
    cost               jsonb check (jsonb_typeof(cost) = 'object'),
    corpus_version     integer not null check (corpus_version >= 1),
    ordinal_limit      integer check (ordinal_limit >= 0),
    schedule           text check (schedule <> ''),
    previous_run_id    text references annotation_runs,
    numbers_stored_at  timestamptz,
    numbers_batch_id   bigint,
    chained_release_id text,
    registered_hash    uuid,
    problem            text,
    check (finished_at >= started_at)
);
create index on annotation_runs (corpus_id, started_at);
comment on table annotation_runs is 'One row a run of annotate_corpus. Ties the run to its recipes (run_tools), image, code and parameters.';
comment on column annotation_runs.run_id is 'Airflow''s run id, or the name given on the command line.';
comment on column annotation_runs.corpus_id is 'The corpus it annotates. No foreign key: a run may be registered before its corpus is read.';
comment on column annotation_runs.corpus_uri is 'The corpus as the user named it.';
comment on column annotation_runs.tools is 'The tools of the run, in the order in which they were chosen.';
comment on column annotation_runs.document_limit is 'Number of documents annotated: the first of the corpus at its version; null for all.';
comment on column annotation_runs.parameters is 'Every choice of the run by its name (runs/choices.py: RunChoices).';
comment on column annotation_runs.model_identity is 'The language model M with its revision or content hash.';
comment on column annotation_runs.code_version is 'Version of this project''s code.';
comment on column annotation_runs.image is 'Container image of the stages; null for local processes.';
comment on column annotation_runs.state is 'running, success or failed.';
comment on column annotation_runs.started_at is 'When the run was registered.';
comment on column annotation_runs.finished_at is 'When it ended; null before that.';
comment on column annotation_runs.estimate is 'Estimate from before the run: texts, calls, device hours, rows. Null where none was made.';
comment on column annotation_runs.cost is 'What the run took, in the same terms as the estimate. Null until it ends.';
comment on column annotation_runs.corpus_version is 'The version of the corpus that it annotates.';
comment on column annotation_runs.ordinal_limit is 'The documents annotated are those with an ordinal below it; null for all.';
comment on column annotation_runs.schedule is 'The schedule that started it; null for a run started by hand.';
comment on column annotation_runs.previous_run_id is 'The run that it is compared with, chosen when it finished: the newest successful one before it over the same corpus, of the same schedule, or for a run by hand of the same model. Null where there is none.';
comment on column annotation_runs.numbers_stored_at is 'When its numbers were stored (finished_run_thresholds, finished_run_progress, finished_run_yield, finished_run_work). Null until it finishes.';
comment on column annotation_runs.numbers_batch_id is 'The newest micro-batch when the numbers were stored. A run with a newer one is being repaired: until it finishes again the views compute its numbers.';
comment on column annotation_runs.chained_release_id is 'The release whose texts the run goes over, with chains; null without. Its calls are the parents of the run''s.';
comment on column annotation_runs.registered_hash is 'registration_hash of the row as the run was registered.';
comment on column annotation_runs.problem is 'Which tasks failed, or how the run was ended. Null for a success, and before the end.';

create table runs_not_started (
    run_id   text primary key,
    problem  text not null,
    ended_at timestamptz not null default now()
);
comment on table runs_not_started is 'Runs that ended before they had a row in annotation_runs: their corpus was not read, or their choices were refused. A run that starts after all leaves this table. Writer: stages/run_setup.py.';
comment on column runs_not_started.run_id is 'As in annotation_runs.';
comment on column runs_not_started.problem is 'Which tasks failed; their logs in Airflow say why.';
comment on column runs_not_started.ended_at is 'When it ended; the last time, where it was tried again.';

create table run_tools (
    run_id              text references annotation_runs,
    tool                text,
    filter_recipe_id    text not null,
    sampling_recipe_id  text not null,
    execution_recipe_id text not null,
    scoring_recipe_id   text not null,
    tool_version        text not null,
    keep_threshold      double precision not null,
    prune_below         double precision not null default 0 check (prune_below >= 0),
    reads_record        boolean not null default false,
    placebo_recipe_id   text,
    tau_information     double precision check (tau_information >= 0 and tau_information < 'Infinity'),
    primary key (run_id, tool),
    constraint what_a_run_keeps_was_not_pruned check (keep_threshold >= prune_below)
);
comment on table run_tools is 'One row for each tool of a run: the recipes it works by.';
comment on column run_tools.run_id is 'The run.';
comment on column run_tools.tool is 'The tool''s name.';
comment on column run_tools.filter_recipe_id is 'Key of filter_decisions.';
comment on column run_tools.sampling_recipe_id is 'Key of candidate_calls.';
comment on column run_tools.execution_recipe_id is 'Key of the execution''s rows in stage_ledger.';
comment on column run_tools.scoring_recipe_id is 'Key of call_losses.';
comment on column run_tools.tool_version is 'Key of call_results, with the tool''s name.';
comment on column run_tools.keep_threshold is 'Nats: calls are kept where loss_reduction >= this. tau_f of the tool in this run (Toolformer, section 2), or call_costs.cost_threshold where that is more.';
comment on column run_tools.prune_below is 'Loss reduction in nats below which calls may be missing: counts at thresholds from here on are exact. 0: nothing was pruned.';
comment on column run_tools.reads_record is 'Whether the tool reads the url and date of a record besides its text: its rows are then those of the variant (run_tool_documents.variant_id).';
comment on column run_tools.placebo_recipe_id is 'Key of placebo_losses. Null where the run asks for no placebos, and before its pool is drawn.';
comment on column run_tools.tau_information is 'A kept call carries at least so much information, nats; null: the paper''s keep rule alone.';

create table stage_ledger (
    stage        text check (stage in ('filter', 'sample', 'execute', 'score', 'placebo')),
    recipe_id    text,
    document_id  uuid,
    rows_written integer not null check (rows_written >= 0),
    counts       jsonb not null default '{}' check (jsonb_typeof(counts) = 'object'),
    seconds      real not null default 0 check (seconds >= 0),
    committed_at timestamptz not null default now(),
    batch_id     bigint,
    rows_hash    uuid,
    primary key (recipe_id, document_id, stage)
);
comment on table stage_ledger is 'What is done: one row for each document that a stage has finished under a recipe, written in the same transaction as the stage''s own rows.';
comment on column stage_ledger.stage is 'filter, sample, execute, score or placebo.';
comment on column stage_ledger.recipe_id is 'The stage''s recipe.';
comment on column stage_ledger.document_id is 'The document.';
comment on column stage_ledger.rows_written is 'Number of rows the stage has for this document (call_results: of the inputs asked).';
comment on column stage_ledger.counts is 'Counts by name, such as {"positions": 5, "samples": 25, "sample_without_end": 3}.';
comment on column stage_ledger.seconds is 'Seconds of work, a share of the micro-batch where documents were worked on together.';
comment on column stage_ledger.committed_at is 'When the transaction began that wrote the rows.';
comment on column stage_ledger.batch_id is 'The micro-batch in which the document was finished (micro_batches, which names the run).';
comment on column stage_ledger.rows_hash is 'First 128 bits of the sha256 of the rows that the stage has for this document (functions rows_hash and *_row_text; of execute: the results of all inputs that the document asks).';

create table micro_batches (
    batch_id         bigint generated always as identity primary key,
    run_id           text not null references annotation_runs,
    tool             text not null,
    stage            text not null check (stage in ('filter', 'sample', 'execute', 'score', 'placebo')),
    recipe_id        text not null,
    documents        integer not null check (documents >= 0),
    rows_written     integer not null check (rows_written >= 0),
    counts           jsonb not null default '{}' check (jsonb_typeof(counts) = 'object'),
    seconds          double precision not null default 0 check (seconds >= 0),
    committed_at     timestamptz not null default now(),
    start_up_seconds double precision check (start_up_seconds >= 0),
    tokens           bigint check (tokens >= 0)
);
create index on micro_batches (recipe_id, committed_at);
create index on micro_batches (run_id, batch_id);
create index on micro_batches (run_id, tool, stage);
create index micro_batches_start_up on micro_batches (batch_id) where start_up_seconds is not null;
comment on table micro_batches is 'What each run did itself: one row for each micro-batch that it committed, with the sums of its ledger rows. Writer: runs/micro_batches.py.';
comment on column micro_batches.batch_id is 'Number of the micro-batch; stage_ledger.batch_id.';
comment on column micro_batches.run_id is 'The run that did the work.';
comment on column micro_batches.tool is 'The tool''s name.';
comment on column micro_batches.stage is 'filter, sample, execute, score or placebo.';
comment on column micro_batches.recipe_id is 'The stage''s recipe.';
comment on column micro_batches.documents is 'Documents finished.';
comment on column micro_batches.rows_written is 'Sum of the ledger rows'' rows_written.';
comment on column micro_batches.counts is 'Sums of the ledger rows'' counts.';
comment on column micro_batches.seconds is 'Sum of the ledger rows'' seconds.';
comment on column micro_batches.committed_at is 'When it was committed.';
comment on column micro_batches.start_up_seconds is 'Seconds from the start of the process until it could work, with loading its model, on the first micro-batch that it committed after that. Null on its others, and where no model was loaded but for filter, which needs none.';
comment on column micro_batches.tokens is 'About how many tokens the filter kept of these documents (about_tokens).';

create table micro_batch_tries (
    try_id       bigint generated always as identity primary key,
    run_id       text not null,
    tool         text not null,
    stage        text not null check (stage in ('filter', 'sample', 'execute', 'score', 'placebo')),
    recipe_id    text not null,
    document_ids uuid[] not null check (cardinality(document_ids) > 0),
    started_at   timestamptz not null default now()
);
comment on table micro_batch_tries is 'The micro-batches at work. A row is committed before the work starts and deleted with the commit of the micro-batch, or by a process that ends in order. So a row whose process is gone says that the process was killed at this work.';
comment on column micro_batch_tries.try_id is 'Its number.';
comment on column micro_batch_tries.run_id is 'The run that works on it.';
comment on column micro_batch_tries.tool is 'The tool''s name.';
comment on column micro_batch_tries.stage is 'filter, sample, execute, score or placebo.';
comment on column micro_batch_tries.recipe_id is 'The recipe of the stage.';
comment on column micro_batch_tries.document_ids is 'The documents of the micro-batch.';
comment on column micro_batch_tries.started_at is 'When the work started.';

create table failed_documents (
    recipe_id   text,
    document_id uuid,
    stage       text check (stage in ('filter', 'sample', 'execute', 'score', 'placebo')),
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
comment on column failed_documents.stage is 'filter, sample, execute, score or placebo.';
comment on column failed_documents.tool is 'The tool''s name.';
comment on column failed_documents.reason is 'process_killed: it killed its process again and again, at last alone (mostly for lack of memory). out_of_memory: alone it does not fit into the memory of the device.';
comment on column failed_documents.deaths is 'How many processes died while they worked on it.';
comment on column failed_documents.run_id is 'The run that gave it up.';
comment on column failed_documents.failed_at is 'When.';

create table rounding_margins (
    model_identity     text,
    device             text,
    number_format      text check (number_format in ('bfloat16', 'float16')),
    calls              integer not null check (calls > 0),
    mean_difference    double precision not null check (mean_difference >= 0),
    largest_difference double precision not null,
    margin             double precision not null,
    measured_at        timestamptz not null default now(),
    primary key (model_identity, device, number_format),
    check (largest_difference >= mean_difference),
    check (margin >= largest_difference and margin < 'Infinity')
);
comment on table rounding_margins is 'Loss reductions of a few hundred calls computed in a model''s number format and in float32, once for each model, device and format; later runs use what is stored. Writer: runs/rounding.py.';
comment on column rounding_margins.model_identity is 'Weights and tokenizer.';
comment on column rounding_margins.device is 'Name of the GPU, or cpu.';
comment on column rounding_margins.number_format is 'bfloat16 or float16.';
comment on column rounding_margins.calls is 'Calls that were computed in both.';
comment on column rounding_margins.mean_difference is 'Mean difference of the two loss reductions of a call, nats.';
comment on column rounding_margins.largest_difference is 'Largest difference, nats.';
comment on column rounding_margins.margin is 'What is allowed for, nats: float32 computes calls again whose loss reduction is so near to a threshold, and nothing is pruned that is so near to prune_below.';
comment on column rounding_margins.measured_at is 'When it was measured.';

create table schedule_versions (
    version text,
    name    text,
    content bytea not null,
    seen_at timestamptz not null default now(),
    primary key (version, name)
);
comment on table schedule_versions is 'Every content that the folder of schedule files had. Airflow shows the version of a run as its bundle version. Writer: orchestration/schedule_bundle.py.';
comment on column schedule_versions.version is 'Hash of the names and contents of all files of the folder.';
comment on column schedule_versions.name is 'Name of a schedule: that of its file, without .toml.';
comment on column schedule_versions.content is 'The bytes of the file.';
comment on column schedule_versions.seen_at is 'When the folder was last found to have become this version.';

create table notifications (
    run_id        text,
    ended_at      timestamptz,
    connection_id text,
    told_at       timestamptz not null default now(),
    primary key (run_id, ended_at, connection_id)
);
comment on table notifications is 'Who was told of the end of a run of a schedule. Writer: orchestration/notifying.py.';
comment on column notifications.run_id is 'As in annotation_runs or runs_not_started.';
comment on column notifications.ended_at is 'Which end, where the run was cleared and ended again: finished_at, or ended_at.';
comment on column notifications.connection_id is 'The Airflow Connection that took the message; empty once nobody is left to be told.';
comment on column notifications.told_at is 'When it took the message.';

create table measured_call_seconds (
    tool             text,
    tool_version     text,
    seconds          double precision not null check (seconds >= 0 and seconds < 'Infinity'),
    calls            bigint not null check (calls > 0),
    measured_version text not null,
    measured_at      timestamptz not null default now(),
    primary key (tool, tool_version)
);
comment on table measured_call_seconds is 'What a call of a tool takes, fixed once for each tool version by the first run that asks for it: later runs use what is stored, so that equal input gives equal rows. Delete a row to have it measured anew. Writer: runs/costs.py.';
comment on column measured_call_seconds.tool is 'The tool''s name.';
comment on column measured_call_seconds.tool_version is 'The tool''s version with its index, checkpoint or settings.';
comment on column measured_call_seconds.seconds is 'Median of call_results.seconds over the calls with a result, to two significant digits.';
comment on column measured_call_seconds.calls is 'Number of executions that it is the median of.';
comment on column measured_call_seconds.measured_version is 'The version whose executions were measured: an earlier one, where this one had executed nothing yet.';
comment on column measured_call_seconds.measured_at is 'When it was fixed.';

create table call_costs (
    run_id          text,
    tool            text,
    seconds         double precision check (seconds >= 0),
    nats_per_second double precision check (nats_per_second > 0),
    price           double precision check (price >= 0),
    price_unit      text,
    nats_per_price  double precision check (nats_per_price > 0),
    cost_threshold  double precision not null check (cost_threshold >= 0),
    primary key (run_id, tool),
    foreign key (run_id, tool) references run_tools,
    check ((seconds is null) = (nats_per_second is null)),
    check (seconds is not null or price is not null),
    check ((price is null) = (nats_per_price is null) and (price is null) = (price_unit is null))
);
comment on table call_costs is 'What a call of each tool costs in a run that asks for nats_per_second or nats_per_price; other runs have no rows. Fixed when the run starts. Writer: stages/run_setup.py.';
comment on column call_costs.run_id is 'The run.';
comment on column call_costs.tool is 'The tool''s name.';
comment on column call_costs.seconds is 'Seconds of a call: the run''s call_seconds, or measured_call_seconds. Null where the run asks for no nats for a second.';
comment on column call_costs.nats_per_second is 'Nats that the run asks for, for each second.';
comment on column call_costs.price is 'Price of a call, by the tool. Null where the tool has none, or the run asks for no nats for it.';
comment on column call_costs.price_unit is 'What the price is counted in.';
comment on column call_costs.nats_per_price is 'Nats that the run asks for, for each unit of price.';
comment on column call_costs.cost_threshold is 'nats_per_second * seconds + nats_per_price * price: run_tools.keep_threshold is at least this, nats.';
