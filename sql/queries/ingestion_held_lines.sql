-- The lines of a file with usable records of the newest version, in order: for each 4 bytes of its number and 8 of its hash.
select string_agg(int4send(line) || coalesce(int8send(line_hash), decode('0000000000000000', 'hex')), '' order by line) as lines
from (
    select line, line_hash
    from corpus_documents
    where corpus_id = :corpus_id and file_uri = :file_uri and left_version is null
    union all
    select line, line_hash
    from corpus_spare_records
    where corpus_id = :corpus_id and file_uri = :file_uri
) held
