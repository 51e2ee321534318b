-- A file has the bytes of its last ingestion: what its source says of them now.
update corpus_files
set size_bytes = :size_bytes, stamp = :stamp
where corpus_id = :corpus_id and file_uri = :file_uri
