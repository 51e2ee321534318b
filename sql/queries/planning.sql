-- How much work a run has, and how long it takes.

-- name: remaining_work
-- How many of the run's documents, beyond what is finished, have a kept paragraph and are not scored, and
-- about how many tokens; and the seconds of a token in sampling, execution and scoring together, over the
-- newest 50 micro-batches of each; null if none is sampled yet.
with unscored as (
    select count(*) as documents, coalesce(sum(kept.tokens), 0)::bigint as tokens
    from members_to_do(:members) d
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
lately as (
    select recipe.stage, sum(newest.seconds) / sum(newest.tokens) as seconds_per_token
    from (values (2, :sampling_recipe_id), (3, :execution_recipe_id), (4, :scoring_recipe_id)) recipe (stage,
        recipe_id)
    cross join lateral (
        select tokens, seconds from micro_batches
        where micro_batches.recipe_id = recipe.recipe_id and tokens > 0
        order by committed_at desc limit 50
    ) newest
    group by recipe.stage
)
select unscored.documents, unscored.tokens,
       (select sum(seconds_per_token order by stage) from lately having min(stage) = 2) as seconds_per_token
from unscored

-- name: seconds_of_model
-- As seconds_per_token of remaining_work, but of this tool with this model under any recipe, among the newest
-- 10,000 micro-batches.
with newest as (
    select batch_id, run_id, tool, stage, tokens, seconds from micro_batches order by batch_id desc
        limit 10000
),
of_model as (
    select newest.stage, newest.tokens, newest.seconds,
        row_number() over (partition by newest.stage order by newest.batch_id desc) as place
    from newest
    join annotation_runs run using (run_id)
    where newest.tool = :tool and newest.stage in ('sample', 'execute', 'score') and newest.tokens > 0
      and run.model_identity = :model_identity
),
lately as (
    select stage, sum(seconds) / sum(tokens) as seconds_per_token from of_model where place <= 50
        group by stage
)
select (select sum(seconds_per_token order by stage) from lately
    having bool_or(stage = 'sample')) as seconds_per_token

-- name: tools_checked
-- The tools for which another run passed the checks of the same rows: of the same recipe, threshold and
-- bounds, at the same version.
select asked.tool
from annotation_runs run
join run_tools asked on asked.run_id = run.run_id
where run.run_id = :run_id
  and exists (
      select
      from run_tools other
      join annotation_runs earlier on earlier.run_id = other.run_id
      cross join lateral (
          select bool_and(result.success or result.severity = 'warn') as passed
          from quality_results result
          where result.run_id = other.run_id and result.subject = other.tool
      ) checks
      where other.run_id <> asked.run_id
        and other.tool = asked.tool
        and other.scoring_recipe_id = asked.scoring_recipe_id
        and other.keep_threshold = asked.keep_threshold
        and other.keep_rule = asked.keep_rule
        and other.placebo_recipe_id is not distinct from asked.placebo_recipe_id
        and other.last_document_id is not distinct from asked.last_document_id
        and earlier.corpus_id = run.corpus_id
        and earlier.corpus_version = run.corpus_version
        and earlier.ordinal_limit is not distinct from run.ordinal_limit
        and earlier.parameters -> 'min_kept_texts' is not distinct from run.parameters -> 'min_kept_texts'
        and earlier.parameters -> 'max_false_discovery_rate'
            is not distinct from run.parameters -> 'max_false_discovery_rate'
        and checks.passed)

-- name: filter_seconds
-- The seconds of a document in the filter of this recipe lately, over the newest 50 micro-batches; null if it
-- has filtered none yet.
select sum(seconds) / nullif(sum(documents), 0) as seconds_per_document
from (
    select documents, seconds from micro_batches
    where recipe_id = :filter_recipe_id
    order by committed_at desc limit 50
) newest

-- name: start_up_seconds
-- The median of what the newest 20 processes took to start: those that filtered, or those that loaded the
-- model; null if there is none.
select percentile_cont(0.5) within group (order by start_up_seconds) as seconds
from (
    select b.start_up_seconds
    from micro_batches b
    join annotation_runs r using (run_id)
    where b.start_up_seconds is not null
      and case when cast(:model_identity as text) is null then b.stage = 'filter'
               else b.stage <> 'filter' and r.model_identity = :model_identity end
    order by b.batch_id desc
    limit 20
) newest
