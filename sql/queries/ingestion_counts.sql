-- What the files read now change in a corpus, in numbers. Read before ingestion_apply, while the tables hold the newest version.
select documents.*, ids.changed
from (
    select count(*) filter (where change = 'added') as added,
           count(*) filter (where change = 'removed') as removed,
           count(*) filter (where change = 'corrected') as corrected
    from outcomes
) documents
cross join (
    select count(*) as changed
    from (
        select c.record_id, c.document_id
        from affected_ids a
        join corpus_documents c on c.corpus_id = :corpus_id and c.record_id = a.record_id and c.left_version is null
        union all
        select s.record_id, s.document_id
        from affected_ids a
        join corpus_spare_records s on s.corpus_id = :corpus_id and s.record_id = a.record_id and s.why = 'duplicate'
    ) before
    join settled now using (record_id)
    where now.becomes <> 'same_id_later' and now.document_id <> before.document_id
) ids
