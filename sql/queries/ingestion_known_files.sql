-- The files of a corpus as they were read last.
select file_uri, content_sha256, size_bytes, stamp, read_as, coalesce(usable, accepted + duplicates, 0) as usable
from corpus_files
where corpus_id = :corpus_id
