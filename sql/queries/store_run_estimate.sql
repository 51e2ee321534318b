-- What the run is expected to take; a later estimate replaces an earlier one.
update annotation_runs set estimate = cast(:estimate as jsonb) where run_id = :run_id
