-- Registering a run twice leaves the first registration, which is hashed.
insert into annotation_runs
    (run_id, corpus_id, corpus_uri, corpus_version, ordinal_limit, tools, document_limit, parameters, model_identity, code_version, image,
     schedule, chained_release_id)
values
    (:run_id, :corpus_id, :corpus_uri, :corpus_version, :ordinal_limit, cast(:tools as text[]), :document_limit, cast(:parameters as jsonb),
     :model_identity, :code_version, nullif(:image, ''), :schedule, :chained_release_id)
on conflict do nothing;
update annotation_runs run set registered_hash = registration_hash(run) where run_id = :run_id and registered_hash is null
