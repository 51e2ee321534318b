-- The next ingestion reads all files of a corpus again.
update corpus_files set read_as = -2 where corpus_id = :corpus_id
