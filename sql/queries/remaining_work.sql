-- How many of the run's documents with a kept paragraph are not scored, and the seconds that a document took lately in sampling and
-- scoring together, over the newest 500 rows of each; null where none is sampled yet.
with unscored as (
    select count(*) as documents
    from run_tool_documents d
    where d.run_id = :run_id and d.tool = :tool
      and exists (
          select from filter_decisions f
          where f.filter_recipe_id = :filter_recipe_id and f.document_id = d.variant_id and f.kept)
      and not exists (
          select from stage_ledger l
          where l.recipe_id = :scoring_recipe_id and l.document_id = d.variant_id and l.stage = 'score')
),
newest_sampled as (
    select seconds from stage_ledger
    where recipe_id = :sampling_recipe_id and stage = 'sample'
    order by committed_at desc limit 500
),
newest_scored as (
    select seconds from stage_ledger
    where recipe_id = :scoring_recipe_id and stage = 'score'
    order by committed_at desc limit 500
)
select unscored.documents,
       (select avg(seconds) from newest_sampled) + coalesce((select avg(seconds) from newest_scored), 0) as seconds_per_document
from unscored
