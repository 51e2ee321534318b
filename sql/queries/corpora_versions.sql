-- The newest versions of a corpus.
select version, documents, added, removed, corrected, changed, files, duplicates, rejected, made_at
from corpus_versions
where corpus_id = :corpus_id
order by version desc
limit :at_most
