-- Rows of recipes that no run needs.

-- name: drop_rows
-- Delete what a recipe has in tables without partitions.
select delete_work(:recipe_id, null);
delete from placebo_pools where placebo_recipe_id = :recipe_id;
update recipes set dropped_at = now() where recipe_id = :recipe_id

-- name: drop_results
delete from call_results where tool = :tool and tool_version = :tool_version

-- name: runs_in_use
-- Runs whose recipes are kept: unfinished ones, finished ones whose numbers are not stored yet, those with a release that is not withdrawn,
-- those that ended within so many days, and the newest successful run of each corpus, model and schedule (null: by hand), which the next
-- night continues, but for schedules whose file is gone (schedules: null where schedules are not known here).
select run_id
from annotation_runs run
where state = 'running'
   or numbers_stored_at is null
   or coalesce(finished_at, started_at) > now() - make_interval(days => :older_than_days)
   or exists (
       select
       from run_releases made
       join dataset_releases release on release.release_id = made.release_id
       where made.run_id = run.run_id and release.withdrawn_at is null
   )
   or (schedule is null or coalesce(schedule = any(cast(:schedules as text[])), true))
       and not exists (
           select
           from annotation_runs newer
           where newer.corpus_id = run.corpus_id
             and newer.model_identity is not distinct from run.model_identity
             and newer.schedule is not distinct from run.schedule
             and newer.state = 'success'
             and (run.state <> 'success' or newer.started_at > run.started_at)
       )
order by run_id

-- name: unused_recipes
-- Recipes with rows that none of these runs uses, with the bytes of their partitions, and of their rows elsewhere by the mean length of a row.
with of_runs as (
    select distinct used.stage, used.recipe_id, rt.tool
    from run_tools rt
    cross join stages_of(rt) used
    where used.recipe_id = coalesce(cast(:recipe_id as text), used.recipe_id)
      and used.recipe_id not in (
          select recipe_id
          from run_tools needed
          cross join stages_of(needed)
          where recipe_id is not null and run_id = any(cast(:run_ids as text[]))
      )
),
counted as (
    select of_runs.*,
           (select count(*) from stage_ledger done where done.recipe_id = of_runs.recipe_id and done.stage = of_runs.stage) as documents,
           (select count(*) from filter_decisions made where made.filter_recipe_id = of_runs.recipe_id) as decisions,
           (select coalesce(sum(pg_total_relation_size(to_regclass(quote_ident(parent || '_' || of_runs.recipe_id)))), 0)::bigint
            from unnest(array['candidate_calls', 'pruned_positions', 'call_losses', 'placebo_losses']) as parent) as partition_bytes
    from of_runs
),
lengths as (
    select coalesce(pg_total_relation_size('stage_ledger') / nullif((select reltuples from pg_class where oid = 'stage_ledger'::regclass), 0), 0)
               as ledger_row,
           coalesce(pg_total_relation_size('filter_decisions')
                    / nullif((select reltuples from pg_class where oid = 'filter_decisions'::regclass), 0), 0) as decision_row
)
select stage, tool, recipe_id, documents, partition_bytes,
       greatest(documents * ledger_row + decisions * decision_row, 0)::bigint as row_bytes
from counted
cross join lengths
where documents > 0 or decisions > 0 or partition_bytes > 0
order by tool, array_position(array['filter', 'sample', 'execute', 'score', 'placebo'], stage), recipe_id

-- name: unused_results
-- Results of versions of tools that none of these runs uses.
select tool, tool_version, count(*) as results, sum(pg_column_size(result.*))::bigint as bytes
from call_results result
where not exists (
    select from run_tools used
    where used.run_id = any(cast(:run_ids as text[])) and used.tool = result.tool and used.tool_version = result.tool_version
)
group by tool, tool_version
order by tool, tool_version
