-- A text of a run with its record: the document, and the variant with the url and date of the run's version.
select document.document_id, coalesce(member.variant_id, member.document_id) as variant_id, member.ordinal, member.title,
       left(record.url, 2000) as url, record.document_date, length(document.text) as characters,
       substr(document.text, :first + 1, :at_most) as text
from documents asked
join documents document on document.document_id = coalesce(asked.variant_of, asked.document_id)
join corpus_documents member
    on member.corpus_id = :corpus_id and member.document_id = document.document_id
   and member.first_version <= :corpus_version and (member.left_version is null or member.left_version > :corpus_version)
   and member.ordinal < :below_ordinal
join documents record on record.document_id = coalesce(member.variant_id, member.document_id)
where asked.document_id = cast(:document_id as uuid)
