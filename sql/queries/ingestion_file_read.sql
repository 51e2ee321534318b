-- A file was read to its end.
insert into read_files (file, file_uri, change, content_sha256, size_bytes, stamp, records, usable, refused, compared)
values (:file, :file_uri, :change, :content_sha256, :size_bytes, :stamp, :records, :usable, cast(:refused as jsonb), :compared)
