-- A shard's documents of the run with a kept paragraph that the previous stage has finished and this one has not, in the order
-- of their ids.
select d.variant_id as document_id
from run_tool_documents d
where d.run_id = :run_id and d.tool = :tool
  and document_shard(d.variant_id, :shard_count) = :shard_index
  and exists (
      select from filter_decisions f
      where f.filter_recipe_id = :filter_recipe_id and f.document_id = d.variant_id and f.kept)
  and exists (
      select from stage_ledger p
      where p.recipe_id = :previous_recipe_id and p.document_id = d.variant_id and p.stage = :previous_stage)
  and not exists (
      select from stage_ledger l
      where l.recipe_id = :recipe_id and l.document_id = d.variant_id and l.stage = :stage)
order by d.variant_id
