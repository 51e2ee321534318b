-- The ordinal below which a corpus at a version holds the first so many documents; no row where it holds no more than these.
select ordinal
from corpus_documents
where corpus_id = :corpus_id
  and first_version <= :version
  and (left_version is null or left_version > :version)
order by ordinal
offset :document_limit
limit 1
