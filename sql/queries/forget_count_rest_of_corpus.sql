-- What a forgotten corpus loses besides the rows of its texts.
select 'corpus_documents' as table_name, count(*) as rows
from corpus_documents
where corpus_id = :corpus_id and document_id not in (select document_id from texts_to_forget)
union all
select 'corpus_spare_records', count(*)
from corpus_spare_records
where corpus_id = :corpus_id and document_id not in (select document_id from texts_to_forget)
union all
select 'rejected_documents', count(*)
from rejected_documents
where corpus_id = :corpus_id and detail is not null
