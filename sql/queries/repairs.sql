-- What `audit --repair` writes.

-- name: files
-- The next ingestion reads all files of a corpus again.
update corpus_files set read_as = -2 where corpus_id = :corpus_id

-- name: document
-- Delete a text that no corpus holds, unless a stage has rows of it.
delete from documents document
where document.document_id = :document_id
  and not exists (select from corpus_documents member where member.document_id = document.document_id)
  and not exists (select from corpus_documents member where member.variant_id = document.document_id)
  and not exists (select from corpus_spare_records spare where spare.document_id = document.document_id)
  and not exists (select from documents variant where variant.variant_of = document.document_id)
  and not exists (
      select
      from recipes recipe
      join stage_ledger done on done.recipe_id = recipe.recipe_id and done.document_id = document.document_id
  )

-- name: release_again
-- The files of a release were written again, with other bytes than the registered ones.
update dataset_releases set manifest_sha256 = :manifest_sha256, withdrawn_at = null
    where release_id = :release_id

-- name: release_calls
delete from release_calls where release_id = :release_id

-- name: runs_at_work
-- Unfinished runs that work by one of these recipes.
select distinct run.run_id
from annotation_runs run
join run_tools rt on rt.run_id = run.run_id
cross join stages_of(rt) stage
where run.state = 'running' and stage.recipe_id = any(cast(:recipe_ids as text[]))
order by run.run_id

-- name: executions
-- The recipes by which a version of a tool is executed, each with that of its calls.
select recipe_id, parent_recipe_id
from recipes
where stage = 'execute' and tool = :tool and definition ->> 'tool_version' = :tool_version

-- name: rows
-- Delete what stages wrote for documents under these recipes, with the marks that the work is finished: the
-- next run does it again. With deletes_results also the results of inputs that no other finished document
-- uses. The executions of the tool's version, and the recipes of their calls, are constants, so that no
-- other partition is read.
with inputs as (
    select distinct call.input_key
    from candidate_calls call
    where :deletes_results and call.sampling_recipe_id = :asked_in
        and call.document_id = any(cast(:document_ids as uuid[]))
      -- A result that another document asks for, and is done with, is sound: were it not, that document's
      -- hash would differ as well.
      and not exists (
          select
          from candidate_calls other
          join recipes execution on execution.parent_recipe_id = other.sampling_recipe_id
          join stage_ledger done
              on done.recipe_id = execution.recipe_id and done.stage = 'execute'
                  and done.document_id = other.document_id
          where other.input_key = call.input_key
            and other.sampling_recipe_id = any(cast(:sampling_recipe_ids as text[]))
            and execution.recipe_id = any(cast(:execution_recipe_ids as text[]))
            and done.recipe_id = any(cast(:execution_recipe_ids as text[]))
            and not (other.document_id = any(cast(:document_ids as uuid[]))
                and execution.recipe_id = any(cast(:recipe_ids as text[]))))
)
delete from call_results result using inputs
where result.tool = :tool and result.tool_version = :tool_version and result.input_key = inputs.input_key;
select delete_work(recipe_id, cast(:document_ids as uuid[]))
    from unnest(cast(:recipe_ids as text[])) recipe (recipe_id)

-- name: later_recipes
-- A recipe and all that are built on it.
with recursive later as (
    select recipe_id, stage, tool, parent_recipe_id, definition from recipes where recipe_id = :recipe_id
    union all
    select next.recipe_id, next.stage, next.tool, next.parent_recipe_id, next.definition
    from recipes next
    join later on next.parent_recipe_id = later.recipe_id
)
select recipe_id, stage, tool, parent_recipe_id, definition from later
