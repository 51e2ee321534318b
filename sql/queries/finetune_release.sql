-- A release with the run that made it.
select release.release_id, release.documents, run.run_id, run.corpus_id, run.corpus_uri, run.corpus_version, run.ordinal_limit,
       run.tools, run.document_limit, run.parameters, run.model_identity
from dataset_releases release
join annotation_runs run on run.run_id = release.run_id
where release.release_id = :release_id
