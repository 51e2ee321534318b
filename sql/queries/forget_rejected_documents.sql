delete from rejected_documents where corpus_id = :corpus_id and file_uri = :file_uri
