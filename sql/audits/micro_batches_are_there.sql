-- fail: the micro-batch in which documents were finished
-- run: lost micro_batches
-- remedy: Restore the row from a backup: it says which run did the work.
select format('batch %s', done.batch_id) as place, format('no row for %s ledger rows of %s', done.documents, done.recipe_id) as found
from (
    select batch_id, min(recipe_id) as recipe_id, count(*) as documents
    from stage_ledger
    where batch_id is not null and recipe_id = any(cast(:recipe_ids as text[]))
    group by batch_id
) done
where not exists (select from micro_batches batch where batch.batch_id = done.batch_id)
