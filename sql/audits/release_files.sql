-- The files of a run's release, as they are on S3.
-- remedy: Compare the release with Postgres: `toolformer-ops audit --release` with its id; --repair makes its files again.

-- name: call_ids_are_unique
-- fail: every call id once
-- files: checked_calls
select call_id
from (select call_id, count(*) over (partition by call_id) as times from {batch}) as counted
where call_id is null or times > 1

-- name: calls_are_those_of_their_rows
-- fail: inputs, results, losses and recipes as in candidate_calls, call_results, call_losses and the release's definition
-- files: checked_calls
-- remedy: `toolformer-ops audit --sample 1000` says whether the rows are right. If they are, withdraw the release and make it again; else restore the rows.
select call_id, difference from {batch} where difference is not null

-- name: document_ids_are_unique
-- fail: every text once
-- files: checked_texts
select document_id
from (select document_id, count(*) over (partition by document_id) as times from {batch}) as counted
where document_id is null or times > 1

-- name: every_text_has_a_call
-- fail: at least one call in every text
-- files: checked_texts
select document_id, call_count from {batch} where call_count < 1

-- name: every_tool_is_present
-- warn: a call of every tool of the run
-- files: released_tools
-- remedy: The view yield_by_stage shows at which stage the tool's calls were lost.
select tool, released_calls from {batch} where released_calls < 1

-- name: losses_are_finite
-- fail: finite losses of at least 0 nats for every scored call
-- files: checked_calls
-- NaN sorts above Infinity in Postgres, so that each comparison refuses both.
select call_id, loss_without_call, loss_without_result, loss_with_result
from {batch}
where (loss_without_call >= 0 and loss_without_call < 'Infinity') is not true
   or (loss_without_result >= 0 and loss_without_result < 'Infinity') is not true
   or (loss_with_result >= 0 and loss_with_result < 'Infinity') is not true

-- name: overlaps_are_those_stored
-- fail: words of evaluation data in those texts that `run_overlaps` names, and in no text that was left out for them
-- files: overlaps
-- remedy: Release the run again: `toolformer-ops stage release --run RUN`. It compares the texts with the evaluation data of now.
select document_id, question, is_found, is_stored, is_left_out_and_in_it
from {batch}
where is_found <> is_stored or is_left_out_and_in_it

-- name: probabilities_are_probabilities
-- fail: position probabilities in [0, 1], or none where a tool proposed the call
-- files: checked_calls
select call_id, position_probability from {batch} where (position_probability between 0 and 1) is false

-- name: reduction_equals_its_definition
-- fail: loss_reduction = min(loss_without_call, loss_without_result, loss_without_call_full_context) - loss_with_result
-- files: checked_calls
select call_id, loss_reduction, by_definition
from (
    select
        call_id,
        loss_reduction,
        loss_reduction(
            loss_without_call, loss_without_result, loss_without_call_full_context, loss_with_result
        ) as by_definition
    from {batch}
) as computed
where loss_reduction is distinct from by_definition

-- name: release_is_what_is_registered
-- fail: on S3 what `dataset_releases` says: number of texts and calls, and the manifest's hash
-- files: registration
select what, on_s3, registered from {batch} where on_s3 is distinct from registered

-- name: tools_are_those_of_the_run
-- fail: no call of a tool that is not one of the run's
-- files: checked_calls
select call_id, tool from {batch} where tool <> all(cast(:tools as text[]))
