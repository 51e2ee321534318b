-- How many of the run's documents, beyond what is finished, have a kept paragraph and are not scored; and what documents took lately: the
-- seconds of one in sampling, execution and scoring together, over the newest 50 micro-batches of each; null where none is sampled yet.
with unscored as (
    select count(*) as documents
    from members_beyond(:corpus_id, :at_version, :below_ordinal, :base_version, :base_ordinal, :reads_record) d
    where exists (
        select from filter_decisions f
        where f.filter_recipe_id = :filter_recipe_id and f.document_id = d.variant_id and f.kept)
      and not exists (
        select from stage_ledger l
        where l.recipe_id = :scoring_recipe_id and l.document_id = d.variant_id and l.stage = 'score')
),
newest_sampled as (
    select documents, seconds from micro_batches
    where recipe_id = :sampling_recipe_id
    order by committed_at desc limit 50
),
newest_executed as (
    select documents, seconds from micro_batches
    where recipe_id = :execution_recipe_id
    order by committed_at desc limit 50
),
newest_scored as (
    select documents, seconds from micro_batches
    where recipe_id = :scoring_recipe_id
    order by committed_at desc limit 50
)
select unscored.documents,
       (select sum(seconds) / nullif(sum(documents), 0) from newest_sampled)
           + coalesce((select sum(seconds) / nullif(sum(documents), 0) from newest_executed), 0)
           + coalesce((select sum(seconds) / nullif(sum(documents), 0) from newest_scored), 0) as seconds_per_document
from unscored
