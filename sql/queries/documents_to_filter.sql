-- A shard's documents of the run, beyond what is finished, that a filter has not judged, in the order of their ids.
select d.variant_id as document_id
from members_beyond(:corpus_id, :at_version, :below_ordinal, :base_version, :base_ordinal, :reads_record) d
where (:shard_count = 1 or document_shard(d.variant_id, :shard_count) = :shard_index)
  and not exists (
      select from stage_ledger l
      where l.recipe_id = :recipe_id and l.document_id = d.variant_id and l.stage = 'filter')
order by d.variant_id
