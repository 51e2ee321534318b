select coalesce(max(ordinal) + 1, 0) as ordinal from corpus_documents where corpus_id = :corpus_id
