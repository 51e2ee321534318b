-- Which of these documents have no row yet.
select asked.document_id
from unnest(cast(:document_ids as uuid[])) as asked (document_id)
where not exists (select from documents d where d.document_id = asked.document_id)
