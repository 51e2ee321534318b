-- What a training reads, and the model that it registers.

-- name: development_documents
-- Documents of the corpus at the release's version that it does not hold: as many as asked for, in an order
-- by seed and hashes alone.
select document.document_id, document.text
from dataset_releases release
join annotation_runs run on run.run_id = release.run_id
join corpus_documents member on member.corpus_id = run.corpus_id and is_member(member, run.corpus_version)
join documents document on document.document_id = member.document_id
where release.release_id = :release_id
  and not exists (
      select 1
      from release_calls call
      where call.release_id = release.release_id and call.document_id = member.document_id
  )
order by md5(cast(:seed as text) || ' ' || member.document_id), member.document_id
limit :documents

-- name: register
-- A model that is registered already keeps all but its manifest and what its training gave, and is no longer
-- withdrawn.
insert into finetuned_models
    (model_id, release_id, run_id, uri, manifest_sha256, definition, training_loss, without_calls, best_step,
     development_perplexity)
values
    (:model_id, :release_id, :run_id, :uri, :manifest_sha256, cast(:definition as jsonb), :training_loss,
        :without_calls,
     :best_step, :development_perplexity)
on conflict (model_id) do update
set manifest_sha256 = excluded.manifest_sha256, training_loss = excluded.training_loss,
    best_step = excluded.best_step,
    development_perplexity = excluded.development_perplexity, withdrawn_at = null

-- name: model_of_run_set
-- A run has one finetuned model of each kind: the newest that it made or found.
insert into run_models (run_id, model_id, without_calls)
values (:run_id, :model_id, :without_calls)
on conflict (run_id, without_calls) do update set model_id = excluded.model_id,
    published_at = excluded.published_at

-- name: release
-- The release of an id or an address, with the run that made it.
select release.release_id, release.documents, run.run_id, run.corpus_id, run.corpus_uri, run.corpus_version,
    run.ordinal_limit,
       run.tools, run.document_limit, run.parameters, run.model_identity
from dataset_releases release
join annotation_runs run on run.run_id = release.run_id
where :release in (release.release_id, release.uri)
