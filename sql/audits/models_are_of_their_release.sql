-- fail: the release and base model of a model's definition, and a run with that base model
-- model: changed finetuned_models
-- remedy: Restore the row from a backup.
select model.model_id as place,
       format('release %s of %s, and a run with %s', model.release_id, released.model_identity, trained.model_identity) as found
from finetuned_models model
join annotation_runs trained on trained.run_id = model.run_id
join dataset_releases release on release.release_id = model.release_id
join annotation_runs released on released.run_id = release.run_id
where model.model_id = any(cast(:model_ids as text[]))
  and model.withdrawn_at is null
  and (model.definition ->> 'release_id' is distinct from model.release_id
       or model.definition ->> 'base_model' is distinct from released.model_identity
       or trained.model_identity is distinct from released.model_identity)
