-- A forgotten corpus holds nothing any more, not even the texts that other corpora hold too.
with spare as (
    delete from corpus_spare_records where corpus_id = :corpus_id
),
files as (
    update corpus_files set read_as = -1 where corpus_id = :corpus_id
)
delete from corpus_documents where corpus_id = :corpus_id
