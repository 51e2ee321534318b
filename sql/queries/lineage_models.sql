-- The models that a run published.
select made.without_calls, model.model_id, model.uri
from run_models made
join finetuned_models model on model.model_id = made.model_id
where made.run_id = :run_id
order by made.without_calls
