-- Tries: documents at which a process died or failed.

-- name: left
-- The tries of processes that are gone; one at whose documents a process of another run is at work is not.
select tried.try_id, tried.document_ids
from micro_batch_tries tried
where tried.recipe_id = :recipe_id
  and tried.stage = :stage
  and not exists (
      select from document_claims claim
      join claimers other using (claimer_id)
      where claim.recipe_id = :recipe_id and claim.stage = :stage
          and claim.document_id = any (tried.document_ids)
        and other.run_id = tried.run_id and other.run_id <> :run_id
            and other.claims_until > clock_timestamp())
order by tried.try_id

-- name: forget_done
-- Tries of a stage under a recipe whose documents are all done by now.
delete from micro_batch_tries tried
where tried.recipe_id = :recipe_id
  and tried.stage = :stage
  and not exists (
      select from unnest(tried.document_ids) as asked (document_id)
      where not exists (
          select from stage_ledger done
          where done.recipe_id = tried.recipe_id and done.document_id = asked.document_id
              and done.stage = tried.stage))

-- name: begin
-- The row must outlive the client, not Postgres's machine: the commit does not wait until it is on the disk.
insert into micro_batch_tries (run_id, tool, stage, recipe_id, document_ids)
select :run_id, :tool, :stage, :recipe_id, cast(:document_ids as uuid[])
where set_config('synchronous_commit', 'off', true) = 'off'
returning try_id

-- name: end
-- A try that has ended: its micro-batch is committed with this statement, or its process ends in order.
delete from micro_batch_tries where try_id = :try_id

-- name: recipe_has_done
-- A row if the stage has done any document under the recipe, rather than given it up.
select 1
from stage_ledger done
where done.recipe_id = :recipe_id
  and done.stage = :stage
  and not exists (
      select from failed_documents failed
      where failed.recipe_id = done.recipe_id and failed.document_id = done.document_id
          and failed.stage = done.stage)
limit 1

-- name: lock_recipes
-- Wait until no check or end of a run records anything about the rows of a run's recipes, or of those that
-- follow from them.
with recursive later as (
    select used.recipe_id from run_tools rt cross join stages_of(rt) used where rt.run_id = :run_id
    union
    select next.recipe_id from recipes next join later on next.parent_recipe_id = later.recipe_id
)
select recipe_id from recipes where recipe_id in (select recipe_id from later)
    order by recipe_id for no key update

-- name: retry_failed
-- Delete what a run's stages wrote for the documents that they gave up, and that later stages made of it, so
-- that the next run tries them again; returns the documents. Results that stand for a killed process are
-- shared: every document that asked for one is executed again.
with given_up as (
    delete from failed_documents failed
    using run_tools rt, stages_of(rt) used
    where rt.run_id = :run_id and failed.recipe_id = used.recipe_id
    returning failed.recipe_id, failed.document_id, failed.stage, failed.tool, failed.reason
),
results as (
    delete from call_results result
    using given_up, run_tools rt
    where rt.run_id = :run_id and rt.tool = given_up.tool and given_up.stage = 'execute'
      and result.tool = rt.tool and result.tool_version = rt.tool_version and result.reason = given_up.reason
    returning result.tool, result.input_key
),
-- The stage that is to be done again, by document.
again as (
    select tool, document_id, stage from given_up
    union
    select results.tool, call.document_id, 'execute'
    from results
    join run_tools rt on rt.run_id = :run_id and rt.tool = results.tool
    join candidate_calls call on call.sampling_recipe_id = rt.sampling_recipe_id
        and call.input_key = results.input_key
),
-- That stage, and those after it: of the run, and under all recipes that follow from the run's.
work as (
    select again.document_id, recipe.recipe_id, recipe.stage
    from again
    join run_tools rt on rt.run_id = :run_id and rt.tool = again.tool
    cross join lateral (
        with recursive later as (
            select recipe_id, stage from stages_of(rt)
                where step >= (select step from stages_of(rt) where stage = again.stage)
            union
            select next.recipe_id, next.stage from recipes next join later
                on next.parent_recipe_id = later.recipe_id
        )
        select recipe_id, stage from later
    ) recipe
),
undone as materialized (
    select delete_work(recipe_id, array_agg(document_id)) from work group by recipe_id
),
-- Nor do later numbers follow from what was counted with these documents as given up, even if that was while
-- this transaction waited.
dropped as (
    update recipes recipe set dropped_at = clock_timestamp() from work where recipe.recipe_id = work.recipe_id
),
stale as (
    select distinct rt.run_id, rt.tool
    from run_tools rt
    join work on work.recipe_id in (rt.sampling_recipe_id, rt.execution_recipe_id, rt.scoring_recipe_id,
        rt.placebo_recipe_id)
),
counted_yields as (
    delete from checked_yields counted using stale where counted.run_id = stale.run_id
        and counted.tool = stale.tool
),
counted_placebos as (
    delete from placebo_counts counted using stale where counted.run_id = stale.run_id
        and counted.tool = stale.tool
)
select stage, tool, document_id, reason
from given_up
where (select count(*) from undone) >= 0  -- else Postgres would not ask it
order by tool, stage, document_id
