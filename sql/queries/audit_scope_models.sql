-- The finetuned models of a scope, with the base model of the run that trained them and of the run that made their release.
select model.model_id, model.run_id, model.release_id, model.uri, model.manifest_sha256, model.definition, model.without_calls,
       model.withdrawn_at is not null as is_withdrawn, trained.model_identity as model_of_run, released.model_identity as model_of_release
from finetuned_models model
join annotation_runs trained on trained.run_id = model.run_id
join dataset_releases release on release.release_id = model.release_id
join annotation_runs released on released.run_id = release.run_id
where :scope = 'all'
   or (:scope = 'model' and model.model_id = :scope_id)
   or (:scope = 'run' and model.model_id in (select made.model_id from run_models made where made.run_id = :scope_id))
   or (:scope = 'corpus' and trained.corpus_id = :scope_id)
order by model.model_id
