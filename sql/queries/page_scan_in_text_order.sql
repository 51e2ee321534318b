-- Texts of a run in the order of the corpus, from a place on, at most :scanned, by the id under which a tool's calls are stored.
select document_id, case when :reads_record then coalesce(variant_id, document_id) else document_id end as variant_id, ordinal
from corpus_documents
where corpus_id = :corpus_id
  and first_version <= :corpus_version
  and (left_version is null or left_version > :corpus_version)
  and ordinal >= :after_ordinal
  and ordinal < :below_ordinal
  and (cast(:document_id as uuid) is null or document_id = cast(:document_id as uuid) or variant_id = cast(:document_id as uuid))
order by ordinal
limit :scanned
