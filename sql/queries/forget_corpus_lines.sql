-- The file has changed: its documents stay in the corpus, and get their new lines while the file is read again.
update corpus_documents set line = null where corpus_id = :corpus_id and file_uri = :file_uri
