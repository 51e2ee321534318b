create view candidates as
with judged as (
    select rt.run_id, rt.tool, member.document_id, sampled.call_id, sampled.text_before, sampled.call_text, loss.result, sampled.text_after,
           call_outcome(
               loss.call_id is not null, loss.reason, loss.loss_reduction, rt.keep_threshold,
               rt.tau_information is null or coalesce(placebo.information >= rt.tau_information, false)) as outcome,
           loss.reason as not_scored_for, loss.loss_without_call, loss.loss_without_result, loss.loss_with_result, loss.loss_reduction,
           loss.reduction_bound, placebo.placebo_reduction, placebo.information, coalesce(placebo.placebos, 0) as placebos,
           rt.keep_threshold, rt.tau_information, sampled.position_char, sampled.position_token, sampled.position_probability,
           sampled.paragraph, sampled.call_input, sampled.effective_input, sampled.input_key, sampled.sample_count,
           sampled.input_only_after, loss.result_rank, loss.loss_without_call_full_context, loss.number_format, sampled.url,
           sampled.document_date, sampled.document_id as variant_id, member.ordinal, rt.sampling_recipe_id, rt.execution_recipe_id,
           rt.scoring_recipe_id, loss.result_follows, made.release_id, run.parameters,
           requires_following(run.parameters) and coalesce(loss.result_follows <> 'equal', false) as lacks_result,
           coalesce(list_contains(made.lacking_tools, rt.tool), false) as is_lacking
    from run_tools rt
    join annotation_runs run on run.run_id = rt.run_id
    left join run_releases made on made.run_id = rt.run_id
    join candidate_calls sampled on sampled.sampling_recipe_id = rt.sampling_recipe_id
    join run_tool_documents member
        on member.run_id = rt.run_id and member.tool = rt.tool and member.variant_id = sampled.document_id
    left join call_losses loss
        on loss.scoring_recipe_id = rt.scoring_recipe_id and loss.document_id = sampled.document_id and loss.call_id = sampled.call_id
    left join placebo_means placebo
        on placebo.placebo_recipe_id = rt.placebo_recipe_id and placebo.document_id = sampled.document_id
       and placebo.call_id = sampled.call_id
),
-- Of the calls of a place that a release may hold the one that saves most comes first, of equal ones that with the smaller id.
placed as (
    select *,
           row_number() over (
               partition by run_id, document_id, position_char, outcome = 'kept' and not input_only_after and not lacks_result and not is_lacking
               order by loss_reduction desc, call_id) as place
    from judged
)
select run_id, tool, document_id, call_id, text_before, call_text, result, text_after, outcome,
       case outcome
           when 'sampled' then (
               select min(failed.reason)
               from failed_documents failed
               where failed.document_id = placed.variant_id
                 and failed.recipe_id in (placed.execution_recipe_id, placed.scoring_recipe_id)
           )
           else not_scored_for
       end as reason,
       case
           when outcome <> 'kept' then null
           when exists (
               select 1 from release_calls released
               where released.release_id = placed.release_id and released.call_id = placed.call_id
           ) then 'released'
           when input_only_after then 'input_only_after'
           when lacks_result then 'result_does_not_follow'
           when not is_lacking and place > 1 then 'better_call_at_position'
           when exists (
               select 1 from run_overlaps shared
               where shared.run_id = placed.run_id and shared.document_id = placed.document_id and shared.is_left_out
           ) then 'holds_evaluation_data'
           when release_id is null then 'no_release'
           when is_lacking or parameters ->> '$.max_examples_per_tool' is null then 'not_in_release'
           else 'above_max_examples'
       end as release_outcome,
       loss_without_call, loss_without_result, loss_with_result, loss_reduction, reduction_bound, placebo_reduction, information, placebos,
       keep_threshold, tau_information, position_char, position_token, position_probability, paragraph, call_input, effective_input,
       input_key, sample_count, input_only_after, result_rank, loss_without_call_full_context, number_format, url, document_date,
       variant_id, ordinal, sampling_recipe_id, execution_recipe_id, scoring_recipe_id, result_follows,
       cast(document_id as uuid) as document_uuid, cast(variant_id as uuid) as variant_uuid, cast(call_id as uuid) as call_uuid
from placed;

create macro candidates_of(run := '') as table select * from candidates where run_id = run_or_newest(run);

create macro outcomes_of(run := '') as table
    select tool, outcome, reason, release_outcome, document_uuid, variant_uuid, call_uuid from candidates where run_id = run_or_newest(run);
