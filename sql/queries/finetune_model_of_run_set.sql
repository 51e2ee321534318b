-- A run has one finetuned model of each kind: the newest that it made or found.
insert into run_models (run_id, model_id, without_calls)
values (:run_id, :model_id, :without_calls)
on conflict (run_id, without_calls) do update set model_id = excluded.model_id, published_at = excluded.published_at
