-- The finetuned models of a run: that which uses tools, then the baseline, where there are any.
select model.model_id, model.uri, model.manifest_sha256, model.withdrawn_at, model.definition, trained.without_calls
from run_models trained
join finetuned_models model on model.model_id = trained.model_id
where trained.run_id = :run_id
order by trained.without_calls
