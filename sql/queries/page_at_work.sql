-- The micro-batches at which a run's processes are at work now: since how many seconds, and on how many tokens (the filter: documents).
select try.tool, try.stage, extract(epoch from now() - try.started_at)::double precision as seconds,
       case when try.stage = 'filter' then cardinality(try.document_ids) else (
           select coalesce(about_tokens(sum(f.end_char - f.start_char)), 0)
           from filter_decisions f
           where f.filter_recipe_id = rt.filter_recipe_id and f.document_id = any(try.document_ids) and f.kept
       ) end as units
from micro_batch_tries try
join run_tools rt using (run_id, tool)
where try.run_id = :run_id
order by try.try_id
