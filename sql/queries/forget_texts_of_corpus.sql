-- Take the texts that this corpus holds or held and that no other corpus holds at its newest version; and those that were forgotten before
-- and are in a release of a run over this corpus.
insert into texts_to_forget (document_id, text_id)
select member.document_id, member.document_id
from (
    select document_id from corpus_documents where corpus_id = :corpus_id
    union
    select document_id from corpus_spare_records where corpus_id = :corpus_id
) member
where not exists (
      select from corpus_documents other
      where other.document_id = member.document_id and other.corpus_id <> :corpus_id and other.left_version is null
  )
  and not exists (
      select from corpus_spare_records other
      where other.document_id = member.document_id and other.corpus_id <> :corpus_id
  )
union
select forgotten.document_id, forgotten.document_id
from forgotten_documents forgotten
join release_calls call on call.document_id = forgotten.document_id
join dataset_releases release on release.release_id = call.release_id
join annotation_runs run on run.run_id = release.run_id
where run.corpus_id = :corpus_id
