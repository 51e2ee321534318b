-- How the documents of a run differ from those of an earlier one over the same corpus; changed: records with an id that have another text.
with touched as (
    select * from corpus_documents
    where corpus_id = :corpus_id and first_version > :before_version and first_version <= :version
    union
    select * from corpus_documents
    where corpus_id = :corpus_id and left_version > :before_version and left_version <= :version
    union
    select * from corpus_documents
    where corpus_id = :corpus_id
      and ordinal >= least(cast(:ordinal_limit as integer), :before_ordinal_limit)
      and ordinal < greatest(cast(:ordinal_limit as integer), :before_ordinal_limit)
),
alive as (
    select document_id, record_id, variant_id, title,
           first_version <= :version and (left_version is null or left_version > :version)
               and ordinal < :ordinal_limit as now,
           first_version <= :before_version and (left_version is null or left_version > :before_version)
               and ordinal < :before_ordinal_limit as before
    from touched
),
by_document as (
    select document_id, bool_or(now) as now, bool_or(before) as before, count(*) filter (where now and not before) > 0 as is_corrected
    from alive
    group by document_id
)
select (select count(*) from by_document where now and not before) as added,
       (select count(*) from by_document where before and not now) as removed,
       (select count(*) from by_document where now and before and is_corrected) as corrected,
       (select count(distinct record_id)
        from alive new
        join alive old using (record_id)
        where new.now and not new.before and old.before and not old.now and new.document_id <> old.document_id) as changed
