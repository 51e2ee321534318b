-- The documents by which two runs differ, as a tool reads them, in the temporary table counted_documents: those that only the run has
-- count 1, those that only its base has count -1.
drop table if exists counted_documents;
create temporary table counted_documents on commit drop as
with counted as (
    select case when :reads_record then variant_id else document_id end as document_id,
           case when has_joined then 1 else -1 end as sign
    from differing_members(
        :corpus_id, :version, cast(:ordinal_limit as integer), :base_version, cast(:base_ordinal_limit as integer))
)
select document_id, sum(sign)::integer as sign from counted group by document_id having sum(sign) <> 0;
analyze counted_documents
