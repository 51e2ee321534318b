-- Documents that the corpus held when a release was made (at the version of the run that made it) and that are not in the release: as
-- many as asked for, in an order that follows from the seed and the documents' hashes alone.
select document.document_id, document.text
from dataset_releases release
join annotation_runs run on run.run_id = release.run_id
join corpus_documents member
    on member.corpus_id = run.corpus_id
   and member.first_version <= run.corpus_version
   and (member.left_version is null or member.left_version > run.corpus_version)
join documents document on document.document_id = member.document_id
where release.release_id = :release_id
  and not exists (
      select 1
      from release_calls call
      where call.release_id = release.release_id and call.document_id = member.document_id
  )
order by md5(cast(:seed as text) || ' ' || member.document_id), member.document_id
limit :documents
