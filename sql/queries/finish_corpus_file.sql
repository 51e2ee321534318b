update corpus_files
set records = :records, accepted = :accepted, duplicates = :duplicates, rejected = :rejected, ingested_at = now()
where corpus_id = :corpus_id and file_uri = :file_uri
