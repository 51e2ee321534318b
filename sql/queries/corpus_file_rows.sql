-- How many rows the file has, to compare with what was counted while reading.
select (select count(*) from corpus_documents
        where corpus_id = :corpus_id and file_uri = :file_uri and line is not null and left_version is null) as accepted,
       (select count(*) from rejected_documents
        where corpus_id = :corpus_id and file_uri = :file_uri) as rejected
