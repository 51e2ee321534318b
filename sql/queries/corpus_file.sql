select content_sha256, records, accepted, duplicates, rejected, ingested_at
from corpus_files
where corpus_id = :corpus_id and file_uri = :file_uri
