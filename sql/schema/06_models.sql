-- Finetuned models and their scores.

create table finetuned_models (
    model_id               text primary key check (model_id <> ''),
    release_id             text not null references dataset_releases,
    run_id                 text not null references annotation_runs,
    uri                    text not null,
    manifest_sha256        text not null,
    definition             jsonb not null default '{}',
    training_loss          double precision,
    created_at             timestamptz not null default now(),
    without_calls          boolean not null default false,
    best_step              integer check (best_step > 0),
    development_perplexity double precision check (development_perplexity > 0),
    withdrawn_at           timestamptz,
    constraint which_of_the_two unique (model_id, without_calls),
    constraint a_best_step_has_a_perplexity check ((best_step is null) = (development_perplexity is null))
);
comment on table finetuned_models is 'One row a finetuned model, written after its manifest.';
comment on column finetuned_models.model_id is 'The model''s name.';
comment on column finetuned_models.release_id is 'The release it was trained on.';
comment on column finetuned_models.run_id is 'The run that trained it.';
comment on column finetuned_models.uri is 'Address of the model, s3://bucket/prefix.';
comment on column finetuned_models.manifest_sha256 is 'sha256 of its manifest.';
comment on column finetuned_models.definition is 'What the model''s id is the hash of: the release, the base model, and every choice that decides the training by its name (runs/choices.py: FinetuningChoices).';
comment on column finetuned_models.training_loss is 'Mean training loss over the last logged steps, nats a token.';
comment on column finetuned_models.created_at is 'When it was registered.';
comment on column finetuned_models.without_calls is 'Whether it was trained on the release''s texts without their calls: the baseline.';
comment on column finetuned_models.best_step is 'The optimiser step whose weights these are: that of the lowest development perplexity. Null where no development document was left; then they are the last step''s.';
comment on column finetuned_models.development_perplexity is 'Perplexity at best_step on documents of the corpus outside the release, as plain text.';
comment on column finetuned_models.withdrawn_at is 'When its files were deleted from S3 (`toolformer-ops forget --model`); null while they are there. The row stays, as the record of what was trained.';

create table run_models (
    run_id        text references annotation_runs,
    model_id      text not null references finetuned_models,
    published_at  timestamptz not null default now(),
    without_calls boolean default false,
    primary key (run_id, without_calls),
    constraint run_models_is_of_its_kind foreign key (model_id, without_calls) references finetuned_models (model_id, without_calls)
);
comment on table run_models is 'The finetuned models of each run: at most one that uses tools and one baseline. Writer: stages/finetuning.py.';
comment on column run_models.run_id is 'The run.';
comment on column run_models.model_id is 'Its model.';
comment on column run_models.published_at is 'When the run''s model was published last.';
comment on column run_models.without_calls is 'Whether it is the baseline that was trained without calls.';

create table evaluation_scores (
    run_id             text references annotation_runs,
    suite              text,
    subset             text,
    model              text,
    model_id           text references finetuned_models,
    variant            text check (variant in ('base', 'without_calls', 'disabled', 'with_tools')),
    call_start_rank    integer check (call_start_rank >= 0),
    metric             text check (metric in ('share_correct', 'perplexity_by_token', 'perplexity_by_byte')),
    inputs             integer check (inputs > 0),
    score              double precision not null check (score >= 0),
    low                double precision not null,
    high               double precision not null,
    call_shares        jsonb not null default '{}',
    inputs_with_call   integer not null,
    score_with_call    double precision check (score_with_call >= 0 and score_with_call <= 1),
    score_without_call double precision check (score_without_call >= 0 and score_without_call <= 1),
    seconds            double precision not null check (seconds >= 0),
    data_sha256        text check (data_sha256 ~ '^[0-9a-f]{64}$'),
    inputs_uri         text,
    inputs_sha256      text check (inputs_sha256 ~ '^[0-9a-f]{64}$'),
    evaluated_at       timestamptz not null default now(),
    calendar_date      date,
    primary key (run_id, suite, subset, model, variant, call_start_rank, metric, inputs, data_sha256, calendar_date),
    constraint a_base_model_has_no_id check ((variant = 'base') = (model_id is null)),
    constraint calls_are_made_with_tools_alone check (variant = 'with_tools' or call_start_rank = 0 and inputs_with_call = 0),
    constraint a_share_is_at_most_1 check (metric <> 'share_correct' or score <= 1),
    constraint an_interval_holds_its_order check (low <= high),
    check (inputs_with_call >= 0 and inputs_with_call <= inputs),
    constraint a_file_has_its_hash check ((inputs_uri is null) = (inputs_sha256 is null))
);
create index evaluation_scores_by_model on evaluation_scores (model_id);
comment on table evaluation_scores is 'One row for each model in each variant on each data set of a suite. Writer: stages/evaluation.py.';
comment on column evaluation_scores.run_id is 'The run whose models were evaluated.';
comment on column evaluation_scores.suite is 'lama, math, qa, mlqa, temporal or perplexity; docs/evaluation.md says what each measures.';
comment on column evaluation_scores.subset is 'The data set, such as squad; of mlqa the language of the question.';
comment on column evaluation_scores.model is 'Identity of the model: name@content hash of the base model, or the id of a finetuned one.';
comment on column evaluation_scores.model_id is 'The finetuned model; null for the base model.';
comment on column evaluation_scores.variant is 'base: M before finetuning. without_calls: M finetuned on the same texts without calls. disabled: the model finetuned with calls, its calls disabled. with_tools: the same, calling tools.';
comment on column evaluation_scores.call_start_rank is 'k: a call starts where " [" is among the k most likely tokens; 0 where calls are disabled.';
comment on column evaluation_scores.metric is 'share_correct, or perplexity_by_token and perplexity_by_byte with calls disabled.';
comment on column evaluation_scores.inputs is 'Inputs that were asked; of perplexity texts. Fewer than the data set has: a sample over its parts.';
comment on column evaluation_scores.score is 'Share of right answers in [0, 1], or the perplexity.';
comment on column evaluation_scores.low is 'Lower end of the 95 % interval: Wilson''s for a share, a bootstrap over texts for a perplexity.';
comment on column evaluation_scores.high is 'Upper end of the 95 % interval.';
comment on column evaluation_scores.call_shares is 'Share of the inputs with at least one call that gave a result, by tool; no entry for a tool that was not called.';
comment on column evaluation_scores.inputs_with_call is 'Inputs with a call of any tool that gave a result.';
comment on column evaluation_scores.score_with_call is 'The score among these (the paper''s Table 9, AC); null where there are none.';
comment on column evaluation_scores.score_without_call is 'The score among all other inputs (NC); null where there are none.';
comment on column evaluation_scores.seconds is 'Wall-clock seconds of writing and judging, without loading the model.';
comment on column evaluation_scores.data_sha256 is 'Hash of the names and contents of the data files that were read.';
comment on column evaluation_scores.inputs_uri is 'JSON Lines on S3 with every input of the suite, what was written, and its calls; null for perplexity.';
comment on column evaluation_scores.inputs_sha256 is 'Hash of that file.';
comment on column evaluation_scores.evaluated_at is 'When the score was written.';
comment on column evaluation_scores.calendar_date is 'The day that the Calendar told for inputs without a date of their own.';
