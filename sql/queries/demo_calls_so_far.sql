-- Distinct calls that were sampled so far for a run's documents.
select coalesce(sum((l.counts ->> 'candidates')::bigint), 0)::bigint as calls
from run_tools rt
join stage_ledger l on l.recipe_id = rt.sampling_recipe_id and l.stage = 'sample'
join run_tool_documents d on d.run_id = rt.run_id and d.tool = rt.tool and d.variant_id = l.document_id
where rt.run_id = :run_id
