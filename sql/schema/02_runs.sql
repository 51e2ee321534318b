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
    dag_id             text,
    dag_run_after      timestamptz,
    ended_hash         uuid,
    check (finished_at >= started_at),
    constraint a_dag_run_has_both_parts_of_its_key check ((coalesce(dag_id, '') = '') = (dag_run_after is null))
);
create index on annotation_runs (corpus_id, started_at);
comment on table annotation_runs is 'One row a run of annotate_corpus. Ties the run to its recipes (run_tools), image, code and parameters.';
comment on column annotation_runs.run_id is 'Airflow''s run id, or the name given on the command line.';
comment on column annotation_runs.corpus_id is 'The corpus it annotates. No foreign key: a run may be registered before its corpus is read.';
comment on column annotation_runs.corpus_uri is 'Address of the corpus with the names of its fields, as in corpora.uri.';
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
comment on column annotation_runs.dag_id is 'The DAG whose run opened this one; empty for the command line. Null for a run from before this was stored.';
comment on column annotation_runs.dag_run_after is 'When Airflow was to start that DAG run (run_after, UTC): with the DAG and the run''s id it names one DAG run, also where an earlier one of the id was deleted. Null for the command line.';
comment on column annotation_runs.ended_hash is 'ending_hash of the row as the run ended. Null before that, and for a run that ended before this was stored.';

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
    registered_hash     uuid,
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
comment on column run_tools.keep_threshold is 'Nats: calls are kept where loss_reduction >= this. tau_f of the tool in this run (Toolformer, section 2).';
comment on column run_tools.prune_below is 'Loss reduction in nats below which calls may be missing: counts at thresholds from here on are exact. 0: nothing was pruned.';
comment on column run_tools.reads_record is 'Whether the tool reads the url and date of a record besides its text: its rows are then those of the variant (run_tool_documents.variant_id).';
comment on column run_tools.placebo_recipe_id is 'Key of placebo_losses. Null where the run asks for no placebos, and before its pool is drawn.';
comment on column run_tools.tau_information is 'A kept call carries at least so much information, nats; null: the paper''s keep rule alone.';
comment on column run_tools.registered_hash is 'tool_registration_hash of the row as the tool was registered; null for a tool of an earlier version''s run.';

create table stage_ledger (
    stage        text not null check (stage in ('filter', 'sample', 'execute', 'score', 'placebo')),
    recipe_id    text not null,
    document_id  uuid not null,
    rows_written integer not null check (rows_written >= 0),
    counts       jsonb not null default '{}' check (jsonb_typeof(counts) = 'object'),
    seconds      real not null default 0 check (seconds >= 0),
    committed_at timestamptz not null default now(),
    batch_id     bigint,
    rows_hash    uuid
) partition by list (recipe_id);
comment on table stage_ledger is 'What is done: one row for each document that a stage has finished under a recipe, written in the same transaction as the stage''s own rows. One partition for each recipe, in which document_id and stage are the key.';
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
    batch_id           bigint generated always as identity primary key,
    run_id             text not null references annotation_runs,
    tool               text not null,
    stage              text not null check (stage in ('filter', 'sample', 'execute', 'score', 'placebo')),
    recipe_id          text not null,
    documents          integer not null check (documents >= 0),
    rows_written       integer not null check (rows_written >= 0),
    counts             jsonb not null default '{}' check (jsonb_typeof(counts) = 'object'),
    seconds            double precision not null default 0 check (seconds >= 0),
    committed_at       timestamptz not null default now(),
    start_up_seconds   double precision check (start_up_seconds >= 0),
    tokens             bigint check (tokens >= 0),
    network_tokens     bigint check (network_tokens >= 0),
    network_seconds    double precision check (network_seconds >= 0),
    network_operations double precision check (network_operations >= 0),
    peak_operations    double precision check (peak_operations >= 0),
    cards              text
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
comment on column micro_batches.network_tokens is 'Tokens that language models read for it, each as often as it was read. Null if none did, and on rows of before this was counted.';
comment on column micro_batches.network_seconds is 'Seconds in which they did, with what else was computed for it. Null with network_tokens.';
comment on column micro_batches.network_operations is 'Operations of their matrix products, without attention. Null with network_tokens, and of mixtures of experts.';
comment on column micro_batches.peak_operations is 'Operations in bfloat16 that the cards could have done in network_seconds, by their maker. Null with network_tokens, on a CPU and on cards whose peak is not known.';
comment on column micro_batches.cards is 'On what they computed, such as NVIDIA H200 or cpu. Null with network_tokens.';

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
    number_format      text check (number_format in ('tf32', 'bfloat16', 'float16')),
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
comment on column rounding_margins.number_format is 'tf32, bfloat16 or float16.';
comment on column rounding_margins.calls is 'Calls that were computed in both.';
comment on column rounding_margins.mean_difference is 'Mean difference of the two loss reductions of a call, nats.';
comment on column rounding_margins.largest_difference is 'Largest difference, nats.';
comment on column rounding_margins.margin is 'What is allowed for, nats: float32 computes calls again whose loss reduction is so near to a threshold, and nothing is pruned that is so near to prune_below.';
comment on column rounding_margins.measured_at is 'When it was measured.';

create table bundle_versions (
    version text,
    name    text,
    content bytea not null,
    seen_at timestamptz not null default now(),
    primary key (version, name)
);
comment on table bundle_versions is 'Every content of a DAG bundle: the schedule files, or the DAG files of this package, each with the tools that had tasks then. Airflow shows the version of a run as its bundle version. Writer: airflow_tasks/bundles/versioned_bundle.py.';
comment on column bundle_versions.version is 'Hash of the names and contents of all files of the bundle.';
comment on column bundle_versions.name is 'Name of a schedule, without .toml; else the name of the file: a DAG file, or tools.json.';
comment on column bundle_versions.content is 'The bytes of the file.';
comment on column bundle_versions.seen_at is 'When the bundle was last found to have become this version.';

create table notifications (
    run_id        text,
    ended_at      timestamptz,
    connection_id text,
    told_at       timestamptz not null default now(),
    primary key (run_id, ended_at, connection_id)
);
comment on table notifications is 'Who was told of the end of a run of a schedule. Writer: airflow_tasks/nights/notifying.py.';
comment on column notifications.run_id is 'As in annotation_runs or runs_not_started.';
comment on column notifications.ended_at is 'Which end, where the run was cleared and ended again: finished_at, or ended_at.';
comment on column notifications.connection_id is 'The Airflow Connection that took the message; empty once nobody is left to be told.';
comment on column notifications.told_at is 'When it took the message.';

create table approvals (
    run_id      text references annotation_runs,
    step        text check (step in ('before_finetuning', 'before_publishing')),
    is_approved boolean not null,
    answered_by text,
    answered_at timestamptz not null,
    max_tries   integer not null,
    primary key (run_id, step)
);
comment on table approvals is 'What was asked of a person before a run went on (approve), and the answer. Of a task that was cleared the newest. Writer: airflow_tasks/approval.py.';
comment on column approvals.run_id is 'The run.';
comment on column approvals.step is 'What waited for the answer.';
comment on column approvals.is_approved is 'The answer. A no skips what follows.';
comment on column approvals.answered_by is 'Name of the person, as Airflow knows it; null if nobody answered in time, which counts as a no.';
comment on column approvals.answered_at is 'When Airflow took the answer.';
comment on column approvals.max_tries is 'Most tries that the task had when it was answered. Airflow raises it if somebody clears the task, and not for a retry: so a retry takes the answer, and a cleared task asks anew.';

create unlogged table claimers (
    claimer_id   uuid primary key default gen_random_uuid(),
    run_id       text not null,
    name         text not null,
    claims_until timestamptz not null
);
comment on table claimers is 'The processes that claim documents. A process puts off the end of its claims as long as it lives, and deletes its row when it has done. Unlogged: after a crash of Postgres it is empty. Writer: runs/claims.py.';
comment on column claimers.claimer_id is 'Its id, which is random: numbers would begin again after a crash of Postgres.';
comment on column claimers.run_id is 'The run that it works for. Another process of the run, such as the next try, may take its claims at once.';
comment on column claimers.name is 'The name of its sessions in Postgres: stage, tool, shard, process, machine, run.';
comment on column claimers.claims_until is 'When processes of other runs may take its claims.';

create unlogged table document_claims (
    stage       text check (stage in ('filter', 'sample', 'execute', 'score', 'placebo')),
    recipe_id   text,
    document_id uuid,
    claimer_id  uuid not null,
    primary key (recipe_id, document_id, stage)
);
create index on document_claims (claimer_id);
comment on table document_claims is 'The documents that a process has claimed, and has not finished. A claim decides who computes and no row: a document that two processes compute all the same is in the ledger once. Unlogged. Writer: runs/claims.py.';
comment on column document_claims.stage is 'filter, sample, execute, score or placebo.';
comment on column document_claims.recipe_id is 'The recipe of the stage.';
comment on column document_claims.document_id is 'The document, or the variant of it that the tool reads.';
comment on column document_claims.claimer_id is 'Who has claimed it; a claimer that is in `claimers` no more claims nothing.';

create table done_with (
    name    text primary key check (name <> ''),
    said_at timestamptz not null default now()
);
comment on table done_with is 'Models and recipes that no next night needs, as a person said: runs that were started before are not kept for the next night by retention. Writer: storage/history/retention.py.';
comment on column done_with.name is 'As annotation_runs.model_identity, or as recipes.recipe_id.';
comment on column done_with.said_at is 'When it was said last; a run that starts later counts again.';
