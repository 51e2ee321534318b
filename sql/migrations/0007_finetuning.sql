-- Finetuned models: which texts they were trained on, and the development perplexity that chose their step. A run may have two: the model
-- that uses tools, and the baseline that was trained on the same texts without calls (Toolformer, section 4.1).

alter table finetuned_models
    add column without_calls boolean not null default false,
    add column best_step integer check (best_step > 0),
    add column development_perplexity double precision check (development_perplexity > 0),
    add constraint which_of_the_two unique (model_id, without_calls),
    add constraint a_best_step_has_a_perplexity check ((best_step is null) = (development_perplexity is null));
comment on column finetuned_models.without_calls is 'Whether it was trained on the release''s texts without their calls: the baseline.';
comment on column finetuned_models.best_step is 'The optimiser step whose weights these are: that of the lowest development perplexity. Null where no development document was left; then they are the last step''s.';
comment on column finetuned_models.development_perplexity is 'Perplexity at best_step on documents of the corpus outside the release, as plain text.';

alter table run_models
    add column without_calls boolean not null default false,
    drop constraint run_models_pkey,
    add primary key (run_id, without_calls),
    add constraint run_models_is_of_its_kind foreign key (model_id, without_calls) references finetuned_models (model_id, without_calls);
comment on table run_models is 'The finetuned models of each run: at most one that uses tools and one baseline. Writer: stages/finetuning.py.';
comment on column run_models.without_calls is 'Whether it is the baseline that was trained without calls.';

-- Runs from before this migration get the parameters that came with it, at their defaults.
update annotation_runs
set parameters = '{"finetune_dev_documents": 1000, "finetune_eval_steps": 500, "finetune_checkpoint_steps": 100, "finetune_baseline": false}'
    || parameters
where parameters <> '{}' and not parameters ? 'finetune_dev_documents';
