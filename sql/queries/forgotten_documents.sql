-- Which of these texts were forgotten: no ingestion takes them again.
select document_id
from forgotten_documents
where document_id = any(cast(:document_ids as uuid[]))
