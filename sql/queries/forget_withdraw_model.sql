update finetuned_models set withdrawn_at = coalesce(withdrawn_at, now()) where model_id = :publication_id
