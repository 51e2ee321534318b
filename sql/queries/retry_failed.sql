-- Delete what a run's stages wrote for the documents that they gave up, and that later stages made of it, so that the next run tries them
-- again; returns the documents. Results that stand for a killed process are shared: every document that asked for one is executed again.
with given_up as (
    delete from failed_documents failed
    using run_tools rt
    where rt.run_id = :run_id
      and failed.recipe_id in (rt.filter_recipe_id, rt.sampling_recipe_id, rt.execution_recipe_id, rt.scoring_recipe_id, rt.placebo_recipe_id)
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
    join candidate_calls call on call.sampling_recipe_id = rt.sampling_recipe_id and call.input_key = results.input_key
),
-- That stage, and those after it: of the run, and under all recipes that follow from the run's.
work as (
    select again.document_id, recipe.recipe_id, recipe.stage
    from again
    join run_tools rt on rt.run_id = :run_id and rt.tool = again.tool
    cross join lateral (
        with recursive own (step, stage, recipe_id) as (
            values (1, 'filter', rt.filter_recipe_id), (2, 'sample', rt.sampling_recipe_id),
                   (3, 'execute', rt.execution_recipe_id), (4, 'score', rt.scoring_recipe_id),
                   (5, 'placebo', rt.placebo_recipe_id)
        ),
        later as (
            select recipe_id, stage from own where step >= (select step from own where stage = again.stage)
            union
            select next.recipe_id, next.stage from recipes next join later on next.parent_recipe_id = later.recipe_id
        )
        select recipe_id, stage from later
    ) recipe
),
ledger as (
    delete from stage_ledger done using work
    where done.recipe_id = work.recipe_id and done.document_id = work.document_id and done.stage = work.stage
),
decisions as (
    delete from filter_decisions decision using work
    where decision.filter_recipe_id = work.recipe_id and decision.document_id = work.document_id
),
losses as (
    delete from call_losses loss using work
    where loss.scoring_recipe_id = work.recipe_id and loss.document_id = work.document_id and work.stage = 'score'
),
placebos as (
    delete from placebo_losses placebo using work
    where placebo.placebo_recipe_id = work.recipe_id and placebo.document_id = work.document_id and work.stage = 'placebo'
),
tries as (
    delete from micro_batch_tries tried using work
    where tried.recipe_id = work.recipe_id and work.document_id = any (tried.document_ids)
),
-- What was finished is not any more: the next run looks at all documents.
finished as (
    delete from finished_work finished using work where finished.recipe_id = work.recipe_id
)
select stage, tool, document_id, reason from given_up order by tool, stage, document_id
