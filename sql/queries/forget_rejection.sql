update rejected_documents set detail = null where corpus_id = :corpus_id and file_uri = :file_uri and line = :line
