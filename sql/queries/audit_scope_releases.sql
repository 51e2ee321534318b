-- The releases of a scope.
select release_id, run_id, uri, manifest_sha256, documents, calls, definition, withdrawn_at is not null as is_withdrawn,
       (select made.chained_release_id is not null from annotation_runs made where made.run_id = release.run_id) as is_chained
from dataset_releases release
where :scope = 'all'
   or (:scope = 'release' and release.release_id = :scope_id)
   or (:scope = 'model' and release.release_id = (select model.release_id from finetuned_models model where model.model_id = :scope_id))
   or (:scope = 'run' and release.release_id in (select made.release_id from run_releases made where made.run_id = :scope_id))
   or (:scope = 'corpus' and release.run_id in (select run.run_id from annotation_runs run where run.corpus_id = :scope_id))
order by release_id
