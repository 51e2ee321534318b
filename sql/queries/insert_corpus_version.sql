-- The next version of a corpus, from what its tables hold now.
insert into corpus_versions
    (corpus_id, version, documents, added, removed, corrected, changed, kept, files, records, duplicates, rejected)
select :corpus_id, :version, member.documents, member.added, 0, 0, 0, member.documents - member.added, file.files,
       member.documents + file.duplicates + refused.records, file.duplicates, refused.records
from (
    select count(*) as documents, count(*) filter (where first_version = :version) as added
    from corpus_documents where corpus_id = :corpus_id and left_version is null
) member
cross join (
    select count(*) as files, coalesce(sum(duplicates), 0) as duplicates from corpus_files where corpus_id = :corpus_id
) file
cross join (select count(*) as records from rejected_documents where corpus_id = :corpus_id) refused
