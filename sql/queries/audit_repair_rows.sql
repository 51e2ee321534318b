-- Delete what stages wrote for documents under these recipes, with the marks that the work is finished: the next run does it again. Of
-- results (deletes_results) those of the inputs that no other document asks which is done.
with inputs as (
    select distinct call.input_key
    from candidate_calls call
    where :deletes_results and call.sampling_recipe_id = :asked_in and call.document_id = any(cast(:document_ids as uuid[]))
      -- A result that another document asks for, and is done with, is sound: were it not, that document's hash would differ as well.
      and not exists (
          select
          from candidate_calls other
          join recipes execution
              on execution.parent_recipe_id = other.sampling_recipe_id and execution.stage = 'execute' and execution.tool = :tool
             and execution.definition ->> 'tool_version' = :tool_version
          join stage_ledger done
              on done.recipe_id = execution.recipe_id and done.stage = 'execute' and done.document_id = other.document_id
          where other.input_key = call.input_key
            and not (other.document_id = any(cast(:document_ids as uuid[])) and execution.recipe_id = any(cast(:recipe_ids as text[]))))
),
results as (
    delete from call_results result using inputs
    where result.tool = :tool and result.tool_version = :tool_version and result.input_key = inputs.input_key
),
decisions as (
    delete from filter_decisions
    where filter_recipe_id = any(cast(:filter_recipe_ids as text[])) and document_id = any(cast(:document_ids as uuid[]))
),
calls as (
    delete from candidate_calls
    where sampling_recipe_id = any(cast(:sampling_recipe_ids as text[])) and document_id = any(cast(:document_ids as uuid[]))
),
pruned as (
    delete from pruned_positions
    where sampling_recipe_id = any(cast(:sampling_recipe_ids as text[])) and document_id = any(cast(:document_ids as uuid[]))
),
lost as (
    delete from lost_samples
    where sampling_recipe_id = any(cast(:sampling_recipe_ids as text[])) and document_id = any(cast(:document_ids as uuid[]))
),
losses as (
    delete from call_losses
    where scoring_recipe_id = any(cast(:scoring_recipe_ids as text[])) and document_id = any(cast(:document_ids as uuid[]))
),
placebos as (
    delete from placebo_losses
    where placebo_recipe_id = any(cast(:placebo_recipe_ids as text[])) and document_id = any(cast(:document_ids as uuid[]))
),
given_up as (
    delete from failed_documents where recipe_id = any(cast(:recipe_ids as text[])) and document_id = any(cast(:document_ids as uuid[]))
),
marks as (
    delete from finished_work where recipe_id = any(cast(:recipe_ids as text[]))
)
delete from stage_ledger where recipe_id = any(cast(:recipe_ids as text[])) and document_id = any(cast(:document_ids as uuid[]))
