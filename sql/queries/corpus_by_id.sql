select corpus_id, uri, created_at from corpora where corpus_id = :corpus_id
