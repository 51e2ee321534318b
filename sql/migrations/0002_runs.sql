-- What was asked for: recipes, runs and the recipes a run uses for each tool.
-- Writer: stages/run_setup.py.

create table recipes (
    recipe_id        text primary key check (recipe_id ~ '^[0-9a-f]{16}$'),
    stage            text not null,
    tool             text not null,
    parent_recipe_id text references recipes,
    definition       jsonb not null,
    created_at       timestamptz not null default now()
);
comment on table recipes is 'One row for all that decides a stage''s output. Rows of the same recipe are the same work, whichever run asked for it.';
comment on column recipes.recipe_id is 'First 16 hex digits of the sha256 of the definition, the parent''s id included.';
comment on column recipes.stage is 'filter, sample, execute or score.';
comment on column recipes.tool is 'The tool''s name.';
comment on column recipes.parent_recipe_id is 'The recipe of the stage before, whose output this one reads; null for filter.';
comment on column recipes.definition is 'Tool and version, prompt text, model and revision, sampling numbers, seed: what was hashed.';
comment on column recipes.created_at is 'When it was first asked for.';

create table annotation_runs (
    run_id         text primary key check (run_id <> ''),
    corpus_id      text not null check (corpus_id ~ '^[0-9a-f]{16}$'),
    corpus_uri     text not null,
    tools          text[] not null,
    document_limit integer check (document_limit > 0),
    parameters     jsonb not null default '{}',
    model_identity text,
    code_version   text,
    image          text,
    state          text not null default 'running' check (state in ('running', 'success', 'failed')),
    started_at     timestamptz not null default now(),
    finished_at    timestamptz check (finished_at >= started_at)
);
comment on table annotation_runs is 'One row a run of annotate_corpus. Ties the run to its recipes (run_tools), image, code and parameters.';
comment on column annotation_runs.run_id is 'Airflow''s run id, or the name given on the command line.';
comment on column annotation_runs.corpus_id is 'The corpus it annotates. No foreign key: a run may be registered before its corpus is read.';
comment on column annotation_runs.corpus_uri is 'The corpus as the user named it.';
comment on column annotation_runs.tools is 'The tools asked for.';
comment on column annotation_runs.document_limit is 'Number of documents annotated: those with ordinal below it; null for all.';
comment on column annotation_runs.parameters is 'Every parameter of the run (run_parameters.RunParameters).';
comment on column annotation_runs.model_identity is 'The language model M with its revision or content hash.';
comment on column annotation_runs.code_version is 'Version of this project''s code.';
comment on column annotation_runs.image is 'Container image of the stages; null for local processes.';
comment on column annotation_runs.state is 'running, success or failed.';
comment on column annotation_runs.started_at is 'When the run was registered.';
comment on column annotation_runs.finished_at is 'When it ended; null before that.';

create table run_tools (
    run_id              text not null references annotation_runs,
    tool                text not null,
    filter_recipe_id    text not null,
    sampling_recipe_id  text not null,
    execution_recipe_id text not null,
    scoring_recipe_id   text not null,
    tool_version        text not null,
    keep_threshold      double precision not null,
    primary key (run_id, tool)
);
comment on table run_tools is 'One row for each tool of a run: the recipes it works by.';
comment on column run_tools.run_id is 'The run.';
comment on column run_tools.tool is 'The tool''s name.';
comment on column run_tools.filter_recipe_id is 'Key of filter_decisions.';
comment on column run_tools.sampling_recipe_id is 'Key of candidate_calls.';
comment on column run_tools.execution_recipe_id is 'Key of the execution''s rows in stage_ledger.';
comment on column run_tools.scoring_recipe_id is 'Key of call_losses.';
comment on column run_tools.tool_version is 'Key of call_results, with the tool''s name.';
comment on column run_tools.keep_threshold is 'tau_f, nats: calls are kept where loss_reduction >= this (Toolformer, section 2).';
