-- Rows of recipes that no run needs.

-- name: delete_work
-- Delete the marks that the work of a recipe is finished, and what it has in tables without partitions.
select delete_work(:recipe_id, null)

-- name: drop_rows
-- Delete what a recipe has in tables without partitions; first its row is locked, so that no check says
-- meanwhile that its work is finished.
update recipes set dropped_at = clock_timestamp() where recipe_id = :recipe_id;
select delete_work(:recipe_id, null);
delete from placebo_pools where placebo_recipe_id = :recipe_id

-- name: drop_rows_in_history
-- Rows of a recipe are in the history alone from now on. Its ledger stays; a run that uses the recipe again
-- does its work again.
update recipes set dropped_at = clock_timestamp() where recipe_id = :recipe_id;
delete from finished_work where recipe_id = :recipe_id

-- name: drop_results
delete from call_results where tool = :tool and tool_version = :tool_version

-- name: runs_in_use
-- Runs whose recipes are kept: unfinished ones, finished ones whose numbers are not stored yet, those with a
-- release that is not withdrawn (with_releases), those that ended within so many days, and the newest
-- successful run of each corpus, model and schedule (null: by hand), which the next night continues, but for
-- schedules whose file is gone (schedules: null where schedules are not known here), and for models and
-- recipes that a person is done with.
select run_id
from annotation_runs run
where state = 'running'
   or numbers_stored_at is null
   or coalesce(finished_at, started_at) > now() - make_interval(days => :older_than_days)
   or :with_releases and exists (
       select
       from run_releases made
       join dataset_releases release on release.release_id = made.release_id
       where made.run_id = run.run_id and release.withdrawn_at is null
           and release.release_id <> all(cast(:withdrawn as text[]))
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
       and not exists (
           select
           from done_with said
           where said.said_at > run.started_at
             and (said.name = run.model_identity
                  or said.name in (select recipe_id from run_tools rt cross join stages_of(rt)
                      where rt.run_id = run.run_id))
       )
order by run_id

-- name: models_and_recipes
-- What a person can be done with: models of runs, by identity or by the name before its last @, and recipes.
select distinct model_identity as name
from annotation_runs
where model_identity = :name or regexp_replace(model_identity, '@[^@]*$', '') = :name
union all
select recipe_id from recipes where recipe_id = :name
order by name

-- name: models
select model_identity as name from annotation_runs where model_identity is not null group by model_identity
    order by max(started_at) desc

-- name: done_with
insert into done_with (name) values (:name) on conflict (name) do update set said_at = now()

-- name: old_models
-- Models that are none of the newest (newest; 0: all count) of their corpus, schedule and kind, that were not
-- published within so many days, and that no run names as its model, and no run at work uses.
with published as (
    select model.model_id, model.uri, model.without_calls, run.corpus_id, run.schedule,
        max(made.published_at) as published_at
    from finetuned_models model
    join run_models made using (model_id)
    join annotation_runs run on run.run_id = made.run_id
    where model.withdrawn_at is null
    group by model.model_id, run.corpus_id, run.schedule
),
ranked as (
    select *, row_number() over (partition by corpus_id, schedule, without_calls
        order by published_at desc, model_id) as place from published
)
select model_id, uri
from ranked
where :newest > 0
group by model_id, uri
having min(place) > :newest
   and max(published_at) < now() - make_interval(days => :older_than_days)
   and not exists (select from annotation_runs run
       where run.parameters::text like '%' || ranked.model_id || '%')
   and not exists (
       select from run_models made join annotation_runs run on run.run_id = made.run_id
           where made.model_id = ranked.model_id and run.state = 'running')
order by model_id

-- name: old_releases
-- Releases that are none of the newest of their corpus and schedule, that no run made within so many days,
-- and that nothing needs: a run at work or a run of chains, a model that stays, and what people judged.
with made as (
    select release.release_id, release.uri, run.corpus_id, run.schedule, max(made.released_at) as released_at,
        bool_or(run.state = 'running') as at_work
    from dataset_releases release
    join run_releases made using (release_id)
    join annotation_runs run on run.run_id = made.run_id
    where release.withdrawn_at is null
    group by release.release_id, run.corpus_id, run.schedule
),
ranked as (
    select *, row_number() over (partition by corpus_id, schedule
        order by released_at desc, release_id) as place from made
)
select release_id, uri
from ranked
where :newest > 0
group by release_id, uri
having min(place) > :newest
   and max(released_at) < now() - make_interval(days => :older_than_days)
   and not bool_or(at_work)
   and not exists (select from annotation_runs run where run.chained_release_id = ranked.release_id)
   and not exists (select from annotation_runs run where run.state = 'running'
       and run.parameters::text like '%' || ranked.release_id || '%')
   and not exists (
       select from finetuned_models model
       where model.release_id = ranked.release_id and model.withdrawn_at is null
           and model.model_id <> all(cast(:model_ids as text[])))
   and not exists (select from judgements judged where judged.release_id = ranked.release_id)
order by release_id

-- name: unused_recipes
-- Recipes with partitions that none of these runs uses, with the documents of their ledger and the bytes of
-- their partitions.
select used.stage, used.tool, used.recipe_id,
       (select count(*) from stage_ledger done where done.recipe_id = used.recipe_id) as documents,
       (select sum(pg_total_relation_size(partition))::bigint from unnest(used.partitions) partition) as bytes
from (
    select distinct stage.stage, rt.tool, stage.recipe_id,
           array(
               select partition
               from unnest(cast(:tables as text[])) parent
               cross join partition_of(parent, stage.recipe_id) partition
               where partition is not null) as partitions
    from run_tools rt
    cross join stages_of(rt) stage
    where stage.recipe_id = coalesce(cast(:recipe_id as text), stage.recipe_id)
      and stage.recipe_id not in (
          select recipe_id
          from run_tools needed
          cross join stages_of(needed)
          where recipe_id is not null and run_id = any(cast(:run_ids as text[]))
      )
) used
where used.partitions <> '{}'
order by used.tool, array_position(array['filter', 'sample', 'execute', 'score', 'placebo'], used.stage),
    used.recipe_id

-- name: recipes_in_history
-- Recipes of calls, losses and placebos that none of these runs uses, and all of whose runs are in the
-- history as they ended; with the documents of their ledger and the bytes of the partition that would be
-- dropped.
select used.stage, used.tool, used.recipe_id,
       (select count(*) from stage_ledger done where done.recipe_id = used.recipe_id) as documents,
       pg_total_relation_size(used.partition) as bytes
from (
    select distinct stage.stage, rt.tool, stage.recipe_id,
           partition_of(cast(:table_of_stage as jsonb) ->> stage.stage, stage.recipe_id) as partition
    from run_tools rt
    cross join stages_of(rt) stage
    where stage.recipe_id = coalesce(cast(:recipe_id as text), stage.recipe_id)
) used
where used.partition is not null
  and not exists (
      select
      from run_tools user_tool
      cross join stages_of(user_tool) stage
      join annotation_runs run using (run_id)
      left join history_runs written using (run_id)
      where stage.recipe_id = used.recipe_id
        and (run_id = any(cast(:run_ids as text[]))
            or written.numbers_stored_at is distinct from run.numbers_stored_at)
  )
order by used.tool, array_position(array['sample', 'score', 'placebo'], used.stage), used.recipe_id

-- name: drop_answers
delete from proposer_answers where proposer = :proposer

-- name: unused_answers
-- Stored answers of proposers behind endpoints that sampled for none of these runs.
select answer.proposer, count(*) as answers, sum(pg_column_size(answer.*))::bigint as bytes
from proposer_answers answer
where not exists (
    select
    from run_tools used
    join recipes sampling on sampling.recipe_id = used.sampling_recipe_id
    where used.run_id = any(cast(:run_ids as text[])) and sampling.definition ->> 'proposer' = answer.proposer
)
group by answer.proposer
order by answer.proposer

-- name: unused_results
-- Results of versions of tools that none of these runs uses.
select tool, tool_version, count(*) as results, sum(pg_column_size(result.*))::bigint as bytes
from call_results result
where not exists (
    select from run_tools used
    where used.run_id = any(cast(:run_ids as text[])) and used.tool = result.tool
        and used.tool_version = result.tool_version
)
group by tool, tool_version
order by tool, tool_version
