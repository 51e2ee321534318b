-- The micro-batches at which a run's processes are at work now: since how many seconds, and on how many tokens (the filter: documents).
-- A killed process leaves its row until the end of the shard: a later try of one of its documents says that it is dead.
select try.tool, try.stage, extract(epoch from now() - try.started_at)::double precision as seconds,
       case when try.stage = 'filter' then cardinality(try.document_ids) else (
           select coalesce(sum(kept.tokens), 0)::bigint
           from (
               select about_tokens(sum(f.end_char - f.start_char)) as tokens
               from filter_decisions f
               where f.filter_recipe_id = rt.filter_recipe_id and f.document_id = any(try.document_ids) and f.kept
               group by f.document_id
           ) kept
       ) end as units
from micro_batch_tries try
join run_tools rt using (run_id, tool)
where try.run_id = :run_id
  and not exists (
      select from micro_batch_tries later
      where later.recipe_id = try.recipe_id and later.stage = try.stage and later.try_id > try.try_id
        and later.document_ids && try.document_ids
  )
order by try.try_id
