-- From which files a version was made.
insert into corpus_version_files (corpus_id, version, file_uri, change, content_sha256, records)
select :corpus_id, :version, file_uri, change, content_sha256, records
from read_files
