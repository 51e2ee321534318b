-- Register a finetuned model; one that is registered already stays as it is, but for its manifest and what its training gave where it
-- was trained anew, and is no longer withdrawn.
insert into finetuned_models
    (model_id, release_id, run_id, uri, manifest_sha256, definition, training_loss, without_calls, best_step,
     development_perplexity)
values
    (:model_id, :release_id, :run_id, :uri, :manifest_sha256, cast(:definition as jsonb), :training_loss, :without_calls,
     :best_step, :development_perplexity)
on conflict (model_id) do update
set manifest_sha256 = excluded.manifest_sha256, training_loss = excluded.training_loss, best_step = excluded.best_step,
    development_perplexity = excluded.development_perplexity, withdrawn_at = null
