-- The documents by which two runs differ, as a tool reads them, in the temporary table counted_documents: those that only the run has
-- count 1, those that only its base has count -1.
drop table if exists counted_documents;
create temporary table counted_documents on commit drop as
with touched as (
    select * from corpus_documents
    where corpus_id = :corpus_id and first_version > :base_version and first_version <= :version
    union
    select * from corpus_documents
    where corpus_id = :corpus_id and left_version > :base_version and left_version <= :version
    union
    select * from corpus_documents
    where corpus_id = :corpus_id
      and ordinal >= least(cast(:ordinal_limit as integer), :base_ordinal_limit)
      and ordinal < greatest(cast(:ordinal_limit as integer), :base_ordinal_limit)
),
counted as (
    select case when :reads_record then coalesce(variant_id, document_id) else document_id end as document_id,
           (first_version <= :version and (left_version is null or left_version > :version)
               and ordinal < :ordinal_limit)::integer
           - (first_version <= :base_version and (left_version is null or left_version > :base_version)
               and ordinal < :base_ordinal_limit)::integer as sign
    from touched
)
select document_id, sum(sign)::integer as sign from counted group by document_id having sum(sign) <> 0;
analyze counted_documents
