-- A forgotten corpus holds nothing any more, not even the texts that other corpora hold too. Where it is ingested again, its files are read again.
with files as (
    update corpus_files set read_as = -1 where corpus_id = :corpus_id
),
spare as (
    delete from corpus_spare_records where corpus_id = :corpus_id returning 1
),
memberships as (
    delete from corpus_documents where corpus_id = :corpus_id returning 1
)
select 'corpus_documents' as table_name, count(*) as rows from memberships
union all
select 'corpus_spare_records', count(*) from spare
