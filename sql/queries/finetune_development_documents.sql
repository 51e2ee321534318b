-- Documents of the corpus of the run that made a release, which are not in the release: as many as asked for, in an order that
-- follows from the seed and the documents' hashes alone.
select document.document_id, document.text
from dataset_releases release
join annotation_runs run on run.run_id = release.run_id
join corpus_documents place on place.corpus_id = run.corpus_id
join documents document on document.document_id = place.document_id
where release.release_id = :release_id
  and not exists (
      select 1
      from release_calls call
      where call.release_id = release.release_id and call.document_id = place.document_id
  )
order by md5(cast(:seed as text) || ' ' || place.document_id), place.document_id
limit :documents
