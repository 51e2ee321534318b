update corpus_documents set line = :line
where corpus_id = :corpus_id and document_id = :document_id and file_uri = :file_uri
