-- The seconds of a document in the filter of this recipe lately, over the newest 50 micro-batches; null where it has filtered none yet.
select sum(seconds) / nullif(sum(documents), 0) as seconds_per_document
from (
    select documents, seconds from micro_batches
    where recipe_id = :filter_recipe_id
    order by committed_at desc limit 50
) newest
