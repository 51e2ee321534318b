select c.corpus_id, c.uri, c.created_at,
       exists (select from corpus_documents d where d.corpus_id = c.corpus_id and d.left_version is null) as has_documents
from corpora c
where c.corpus_id = :corpus_id
