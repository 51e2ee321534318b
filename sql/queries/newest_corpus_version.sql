-- The newest version of a corpus; no row before its first.
select version, documents, added, removed, corrected, changed, kept, files, records, duplicates, rejected
from corpus_versions
where corpus_id = :corpus_id
order by version desc
limit 1
