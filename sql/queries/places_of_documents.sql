-- The file and line in which the corpus has each of these documents first.
select document_id, file_uri, line
from corpus_documents
where corpus_id = :corpus_id and document_id = any(cast(:document_ids as uuid[]))
