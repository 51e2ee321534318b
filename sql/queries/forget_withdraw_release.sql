update dataset_releases set withdrawn_at = coalesce(withdrawn_at, now()) where release_id = :publication_id
