-- Models that were trained on one of these releases, the oldest first.
select model_id, release_id, run_id, uri, withdrawn_at
from finetuned_models
where release_id = any(cast(:release_ids as text[]))
order by created_at, model_id
