-- The release and the finetuned model of a run; null where it has none.
select r.state, release.uri as release_uri, release.documents as released_texts, release.calls as released_calls,
       release.lacking_tools, model.uri as model_uri, model.training_loss
from annotation_runs r
left join run_releases made on made.run_id = r.run_id
left join dataset_releases release on release.release_id = made.release_id
left join run_models trained on trained.run_id = r.run_id and not trained.without_calls
left join finetuned_models model on model.model_id = trained.model_id
where r.run_id = :run_id
