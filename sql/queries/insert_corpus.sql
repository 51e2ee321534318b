insert into corpora (corpus_id, uri) values (:corpus_id, :uri) on conflict do nothing
