-- What evaluations gave: a row for each model in each of the paper's variants on each data set (Toolformer, sections 4.2 to 4.4 and 5).
-- A second evaluation of the same thing writes nothing.

create table evaluation_scores (
    run_id              text not null references annotation_runs,
    suite               text not null,
    subset              text not null,
    model               text not null,
    model_id            text references finetuned_models,
    variant             text not null check (variant in ('base', 'without_calls', 'disabled', 'with_tools')),
    call_start_rank     integer not null check (call_start_rank >= 0),
    metric              text not null check (metric in ('share_correct', 'perplexity_by_token', 'perplexity_by_byte')),
    inputs              integer not null check (inputs > 0),
    score               double precision not null check (score >= 0),
    low                 double precision not null,
    high                double precision not null,
    call_shares         jsonb not null default '{}',
    inputs_with_call    integer not null check (inputs_with_call between 0 and inputs),
    score_with_call     double precision check (score_with_call between 0 and 1),
    score_without_call  double precision check (score_without_call between 0 and 1),
    seconds             double precision not null check (seconds >= 0),
    data_sha256         text not null check (data_sha256 ~ '^[0-9a-f]{64}$'),
    inputs_uri          text,
    inputs_sha256       text check (inputs_sha256 ~ '^[0-9a-f]{64}$'),
    evaluated_at        timestamptz not null default now(),
    primary key (run_id, suite, subset, model, variant, call_start_rank, metric, inputs, data_sha256),
    constraint a_share_is_at_most_1 check (metric <> 'share_correct' or score <= 1),
    constraint an_interval_holds_its_order check (low <= high),
    constraint calls_are_made_with_tools_alone check (variant = 'with_tools' or (call_start_rank = 0 and inputs_with_call = 0)),
    constraint a_base_model_has_no_id check ((variant = 'base') = (model_id is null)),
    constraint a_file_has_its_hash check ((inputs_uri is null) = (inputs_sha256 is null))
);
comment on table evaluation_scores is 'A row for each model in each variant on each data set of a suite. Writer: stages/evaluation.py.';
comment on column evaluation_scores.run_id is 'The run whose models were evaluated.';
comment on column evaluation_scores.suite is 'lama, math, qa, mlqa, temporal or perplexity; docs/evaluation.md says what each measures.';
comment on column evaluation_scores.subset is 'The data set, such as squad; of mlqa the language of the question.';
comment on column evaluation_scores.model is 'Identity of the model: name@content hash of the base model, or the id of a finetuned one.';
comment on column evaluation_scores.model_id is 'The finetuned model; null for the base model.';
comment on column evaluation_scores.variant is 'base: M before finetuning. without_calls: M finetuned on the same texts without calls. disabled: the model finetuned with calls, its calls disabled. with_tools: the same, calling tools.';
comment on column evaluation_scores.call_start_rank is 'k: a call starts where " [" is among the k most likely tokens; 0 where calls are disabled.';
comment on column evaluation_scores.metric is 'share_correct, or perplexity_by_token and perplexity_by_byte with calls disabled.';
comment on column evaluation_scores.inputs is 'Inputs that were asked; of perplexity texts.';
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
create index evaluation_scores_by_model on evaluation_scores (model_id);

-- Runs from before this migration get the parameters that came with it, at their defaults.
update annotation_runs
set parameters = '{"evaluation_suites": [], "evaluation_data": "", "evaluation_inputs": null}' || parameters
where parameters <> '{}' and not parameters ? 'evaluation_suites';
