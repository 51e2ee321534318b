-- What the files of a corpus hold now.
select count(*) as files,
       coalesce(sum(records), 0)::bigint as records,
       coalesce(sum(accepted), 0)::bigint as documents,
       coalesce(sum(duplicates), 0)::bigint as duplicates,
       coalesce(sum(rejected), 0)::bigint as rejected
from corpus_files
where corpus_id = :corpus_id
