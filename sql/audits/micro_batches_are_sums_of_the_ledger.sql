-- fail: ledger rows that sum up to their micro-batch
-- run: changed stage_ledger
-- remedy: One of the two was changed. Restore it from a backup, or compare counts with the documents' rows by `--sample`.
with done as (
    select batch_id, count(*) as documents, sum(rows_written) as rows_written
    from stage_ledger
    where batch_id is not null and recipe_id = any(cast(:recipe_ids as text[]))
    group by batch_id
),
summed as (
    select batch_id, jsonb_object_agg(name, count order by name) as counts
    from (
        select ledger.batch_id, counted.key as name, sum(cast(counted.value as bigint)) as count
        from stage_ledger ledger
        cross join jsonb_each_text(ledger.counts) counted
        where ledger.batch_id is not null and ledger.recipe_id = any(cast(:recipe_ids as text[]))
        group by ledger.batch_id, counted.key
        having sum(cast(counted.value as bigint)) <> 0
    ) by_name
    group by batch_id
)
select format('batch %s', batch.batch_id) as place,
       format('%s documents, %s rows and %s in the ledger, and %s, %s and %s in micro_batches', done.documents, done.rows_written,
              coalesce(summed.counts, '{}'), batch.documents, batch.rows_written, batch.counts) as found
from micro_batches batch
join done using (batch_id)
left join summed using (batch_id)
-- Ledger rows of documents that were forgotten, or are to be done again, are gone.
where done.documents > batch.documents
   or done.documents = batch.documents
      and (done.rows_written <> batch.rows_written
           or coalesce(summed.counts, '{}') <> (
               select coalesce(jsonb_object_agg(key, value), '{}') from jsonb_each(batch.counts) where value <> '0'))
