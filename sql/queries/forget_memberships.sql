-- A forgotten corpus holds nothing any more, not even the texts that other corpora hold too.
delete from corpus_documents where corpus_id = :corpus_id
