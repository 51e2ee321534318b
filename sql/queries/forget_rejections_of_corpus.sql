-- What was found in the refused records of a forgotten corpus.
update rejected_documents set detail = null where corpus_id = :corpus_id and detail is not null
