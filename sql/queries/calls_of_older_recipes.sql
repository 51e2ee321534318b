-- Stored calls by tool that were sampled under recipes of an earlier version, whose definitions hold what `alike` holds.
select recipe.tool, sum(ledger.rows_written)::bigint as calls
from recipes recipe
join stage_ledger ledger on ledger.recipe_id = recipe.recipe_id and ledger.stage = recipe.stage
where recipe.stage = 'sample'
  and :tool in ('', recipe.tool)
  and (recipe.definition ->> 'sampling_version')::integer < :sampling_version
  and recipe.definition @> cast(:alike as jsonb)
group by recipe.tool
having sum(ledger.rows_written) > 0
order by recipe.tool
