select run_id, corpus_id, corpus_uri, corpus_version, ordinal_limit, tools, document_limit, parameters, model_identity, code_version, image,
       state, started_at, finished_at, schedule, chained_release_id
from annotation_runs
where run_id = :run_id
