-- A file is about to be read; it counts as unread until finish_corpus_file.
insert into corpus_files (corpus_id, file_uri, content_sha256)
values (:corpus_id, :file_uri, :content_sha256)
on conflict (corpus_id, file_uri) do update
set content_sha256 = excluded.content_sha256, records = null, accepted = null, duplicates = null, rejected = null,
    ingested_at = null
