-- How many of the run's documents, beyond what is finished, have a kept paragraph and are not scored, and about how many tokens they
-- have; and what tokens took lately: the seconds of one in sampling, execution and scoring together, over the newest 50 micro-batches
-- of each; null where none is sampled yet.
with unscored as (
    select count(*) as documents, coalesce(sum(kept.tokens), 0)::bigint as tokens
    from members_beyond(:corpus_id, :at_version, :below_ordinal, :base_version, :base_ordinal, :reads_record) d
    cross join lateral (
        select about_tokens(sum(f.end_char - f.start_char)) as tokens
        from filter_decisions f
        where f.filter_recipe_id = :filter_recipe_id and f.document_id = d.variant_id and f.kept
    ) kept
    where kept.tokens is not null
      and not exists (
        select from stage_ledger l
        where l.recipe_id = :scoring_recipe_id and l.document_id = d.variant_id and l.stage = 'score')
),
newest_sampled as (
    select tokens, seconds from micro_batches
    where recipe_id = :sampling_recipe_id and tokens > 0
    order by committed_at desc limit 50
),
newest_executed as (
    select tokens, seconds from micro_batches
    where recipe_id = :execution_recipe_id and tokens > 0
    order by committed_at desc limit 50
),
newest_scored as (
    select tokens, seconds from micro_batches
    where recipe_id = :scoring_recipe_id and tokens > 0
    order by committed_at desc limit 50
)
select unscored.documents, unscored.tokens,
       (select sum(seconds) / nullif(sum(tokens), 0) from newest_sampled)
           + coalesce((select sum(seconds) / nullif(sum(tokens), 0) from newest_executed), 0)
           + coalesce((select sum(seconds) / nullif(sum(tokens), 0) from newest_scored), 0) as seconds_per_token
from unscored
