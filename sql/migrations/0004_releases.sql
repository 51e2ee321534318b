-- What went out: quality results, released data sets and finetuned models.
-- Writers: stages/checking.py (quality_results), stages/release.py, stages/finetuning.py.

create table quality_results (
    run_id     text not null references annotation_runs,
    subject    text not null,
    check_name text not null,
    severity   text not null check (severity in ('fail', 'warn')),
    success    boolean not null,
    observed   jsonb not null default '{}',
    message    text not null default '',
    checked_at timestamptz not null default now(),
    primary key (run_id, subject, check_name)
);
comment on table quality_results is 'One row a check: its newest outcome.';
comment on column quality_results.run_id is 'The run.';
comment on column quality_results.subject is 'What was checked: a tool''s name, or release.';
comment on column quality_results.check_name is 'The check''s name.';
comment on column quality_results.severity is 'fail stops the run where the check does not succeed, warn reports.';
comment on column quality_results.success is 'Whether it succeeded.';
comment on column quality_results.observed is 'What was seen: counts, bounds, examples of offending rows.';
comment on column quality_results.message is 'One sentence for people.';
comment on column quality_results.checked_at is 'When it was checked last.';

create table dataset_releases (
    release_id      text primary key check (release_id <> ''),
    run_id          text not null references annotation_runs,
    uri             text not null,
    manifest_sha256 text not null,
    documents       integer not null check (documents >= 0),
    calls           integer not null check (calls >= 0),
    lacking_tools   text[] not null default '{}',
    created_at      timestamptz not null default now()
);
comment on table dataset_releases is 'One row a released data set, written after its manifest.';
comment on column dataset_releases.release_id is 'The release''s name.';
comment on column dataset_releases.run_id is 'The run that made it.';
comment on column dataset_releases.uri is 'Where it lies, s3://bucket/prefix.';
comment on column dataset_releases.manifest_sha256 is 'sha256 of its manifest.';
comment on column dataset_releases.documents is 'Number of texts with at least one call.';
comment on column dataset_releases.calls is 'Number of calls.';
comment on column dataset_releases.lacking_tools is 'Tools of the run that failed and are not in it.';
comment on column dataset_releases.created_at is 'When it was registered.';

create table release_calls (
    release_id        text not null references dataset_releases,
    document_id       uuid not null,
    call_id           uuid not null,
    scoring_recipe_id text not null,
    tool              text not null,
    primary key (release_id, call_id)
);
create index on release_calls (release_id, document_id);
comment on table release_calls is 'Which calls a release holds.';
comment on column release_calls.release_id is 'The release.';
comment on column release_calls.document_id is 'The text that holds the call.';
comment on column release_calls.call_id is 'The call, as in candidate_calls.';
comment on column release_calls.scoring_recipe_id is 'Where its losses are: key of call_losses with call_id.';
comment on column release_calls.tool is 'The tool''s name.';

create table finetuned_models (
    model_id        text primary key check (model_id <> ''),
    release_id      text not null references dataset_releases,
    run_id          text not null references annotation_runs,
    uri             text not null,
    manifest_sha256 text not null,
    definition      jsonb not null default '{}',
    training_loss   double precision,
    created_at      timestamptz not null default now()
);
comment on table finetuned_models is 'One row a finetuned model, written after its manifest.';
comment on column finetuned_models.model_id is 'The model''s name.';
comment on column finetuned_models.release_id is 'The release it was trained on.';
comment on column finetuned_models.run_id is 'The run that trained it.';
comment on column finetuned_models.uri is 'Where it lies, s3://bucket/prefix.';
comment on column finetuned_models.manifest_sha256 is 'sha256 of its manifest.';
comment on column finetuned_models.definition is 'Base model, hyperparameters, seed, steps.';
comment on column finetuned_models.training_loss is 'Mean training loss over the last logged steps, nats a token.';
comment on column finetuned_models.created_at is 'When it was registered.';
