create view rejected_records as
select file.corpus_id, file.file_uri, counted.reason, counted.records::bigint as records
from corpus_files file
cross join lateral jsonb_each_text(file.refused) counted (reason, records)
union all
select corpus_id, file_uri, why, count(*)
from corpus_spare_records
where why = 'same_id_later'
group by corpus_id, file_uri, why;
comment on view rejected_records is
    'How many records of each file of a corpus are refused, by reason, at the newest version. '
    'rejected_documents has the first of them with their lines.';
comment on column rejected_records.records is 'Number of records.';
call inherit_comments('rejected_records', 'rejected_documents');
