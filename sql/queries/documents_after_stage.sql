-- A shard's documents of the run, beyond what is finished, with a kept paragraph, that the previous stage has finished and this one has
-- not, in the order of their ids.
select d.variant_id as document_id
from members_beyond(:corpus_id, :at_version, :below_ordinal, :base_version, :base_ordinal, :reads_record) d
where (:shard_count = 1 or document_shard(d.variant_id, :shard_count) = :shard_index)
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
