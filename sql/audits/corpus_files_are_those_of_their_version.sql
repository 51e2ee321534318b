-- fail: the hash and the number of records with which the newest version read the file
-- corpus: changed corpus_files
-- remedy: Compare the hash with that of the file, and restore the wrong row from a backup.
select file.file_uri as place,
       format('%s of %s records in corpus_files, and %s of %s in corpus_version_files', file.content_sha256, file.records,
              made.content_sha256, made.records) as found
from corpus_files file
-- A file that says the same in other bytes makes no version.
join corpus_versions version on version.corpus_id = file.corpus_id and version.made_at = file.ingested_at
join corpus_version_files made on made.corpus_id = file.corpus_id and made.version = version.version and made.file_uri = file.file_uri
where file.corpus_id = any(cast(:corpus_ids as text[]))
  and (file.content_sha256, file.records) is distinct from (made.content_sha256, made.records)
