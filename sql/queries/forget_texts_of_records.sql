-- Take the texts of these records of a corpus, in each of its versions; returns which records there are.
with held as (
    select record_id, document_id from corpus_documents
    where corpus_id = :corpus_id and record_id = any(cast(:record_ids as text[]))
    union
    select record_id, document_id from corpus_spare_records
    where corpus_id = :corpus_id and record_id = any(cast(:record_ids as text[]))
),
taken as (
    insert into texts_to_forget (document_id, text_id)
    select distinct document_id, document_id from held
)
select distinct record_id from held
