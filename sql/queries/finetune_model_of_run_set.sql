-- A run has one finetuned model: the newest that it made or found.
insert into run_models (run_id, model_id)
values (:run_id, :model_id)
on conflict (run_id) do update set model_id = excluded.model_id, published_at = excluded.published_at
