-- What a load of files asks of Postgres.

-- name: members
-- The documents of a run: the id of each text, and that of its rows.
select document_id, variant_id
from members_to_do(:members)

-- name: forgotten
-- Which of these texts were forgotten.
select document_id
from forgotten_documents
where document_id = any(cast(:document_ids as uuid[]))
