-- The calls in checked_members, each once with its losses and its result: all other rows to check of calls are made of these.
--   is_candidate, is_judged   whether it has a row in candidate_calls, and in call_losses
--   is_answered               whether its input has a result, or the reason why not
--   is_releasable             kept, and its input stands not only after it
--   is_plainly_written        taken out of its text it gives the text back, by the rules that call_syntax.py names
create temporary table checked_work as
with candidate as (
    select call.*, member.text_length, member.holds_call
    from checked_members member
    join candidate_calls call on call.document_id = member.variant_id
    where call.sampling_recipe_id = :sampling_recipe_id
),
judged as (
    select loss.*
    from checked_members member
    join call_losses loss on loss.document_id = member.variant_id
    where loss.scoring_recipe_id = :scoring_recipe_id
)
select
    coalesce(candidate.document_id, judged.document_id) as document_id,
    coalesce(candidate.call_id, judged.call_id) as call_id,
    candidate.document_id is not null as is_candidate,
    judged.document_id is not null as is_judged,
    result.input_key is not null as is_answered,
    candidate.position_char,
    candidate.position_probability,
    candidate.text_length,
    judged.reason,
    judged.reduction_bound,
    judged.loss_without_call,
    judged.loss_without_result,
    judged.loss_without_call_full_context,
    judged.loss_with_result,
    judged.loss_reduction,
    run_keeps(judged.reason, judged.loss_reduction, :keep_threshold,
            :placebo_recipe_id, judged.document_id, judged.call_id, cast(:tau_information as double precision))
        and not candidate.input_only_after as is_releasable,
    not candidate.holds_call
        and candidate.position_char between 0 and candidate.text_length
        and candidate.call_input !~ :not_in_a_call as is_plainly_written
from candidate
full join judged on judged.document_id = candidate.document_id and judged.call_id = candidate.call_id
left join call_results result
    on result.tool = :tool
   and result.tool_version = :tool_version
   and result.input_key = candidate.input_key;

-- Rows to check: the candidate calls, with the length of their texts.
create temporary view checked_calls as
select call_id, position_char, text_length, position_probability from checked_work where is_candidate;

-- Rows to check: the scored calls with their losses.
create temporary view checked_losses as
select
    call_id, loss_without_call, loss_without_result, loss_without_call_full_context, loss_with_result, loss_reduction
from checked_work
where is_judged and reason is null
