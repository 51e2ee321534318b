-- What decided over a call.

-- name: calls
-- The calls of a run with what is stored of their losses: one by its id, those at an offset of a document, or
-- both.
select r.run_id, cast(call.document_id as text) as document_id, cast(call.call_id as text) as call_id,
    call.call_text as call,
       call.position_char as at,
       substr(document.text, greatest(call.position_char - 60, 0) + 1,
           least(call.position_char, 60)) as text_before,
       substr(document.text, call.position_char + 1, 60) as text_after,
       call.result, call.reason, call.position_token, call.loss_without_call, call.loss_without_result,
           call.loss_with_result,
       call.loss_without_call_full_context,
           cast(r.parameters ->> 'scoring_context_tokens' as integer) as context_tokens,
       case when call.reason is null then call.loss_reduction end as loss_reduction, call.reduction_bound,
           rt.keep_threshold,
       case when call.reason is null then call_gain(call.gain_bound, call.probability_with,
           call.placebo_probability) end as gain,
       call.gain_bound, call.probability_without, call.placebo_probability, call.probability_with,
           rt.keep_rule,
       call.placebos, call.information,
       run_keeps(call.reason, call.gain_bound, rt.keep_threshold, call.probability_with,
           call.placebo_probability) is true as kept,
       call.token_log_probabilities, call.scored_tokens,
       (select recipe.definition -> 'weights' from recipes recipe
           where recipe.recipe_id = rt.scoring_recipe_id) as token_weights
from annotation_runs r
join run_tools rt on rt.run_id = r.run_id
cross join lateral (
    -- Planned separately, so that only the partitions of the run's recipes are read.
    with losses as (
        select * from call_losses
        where scoring_recipe_id = rt.scoring_recipe_id
          and (cast(:document_id as uuid) is null or document_id = cast(:document_id as uuid))
          and (cast(:call_id as uuid) is null or call_id = cast(:call_id as uuid))
    )
    select loss.document_id, loss.call_id, candidate.call_text, candidate.position_char,
        candidate.position_token,
           loss.result, loss.reason, loss.loss_without_call, loss.loss_without_result, loss.loss_with_result,
           loss.loss_without_call_full_context, loss.loss_reduction, loss.reduction_bound,
               loss.token_log_probabilities, loss.scored_tokens,
           loss.gain_bound, loss.probability_without, loss.probability_with,
               means.probability as placebo_probability,
           -- Those that the call's information is measured against; the result is null if its text was
           -- forgotten.
           (select coalesce(jsonb_agg(jsonb_build_object(
                       'result', source.result, 'loss_with_result', placebo.loss_with_result, 'information',
                           placebo.information)
                       order by placebo.number), '[]')
            from placebo_losses placebo
            left join placebo_pool_results source
                on source.placebo_recipe_id = rt.placebo_recipe_id and source.source = placebo.source
            where placebo.placebo_recipe_id = rt.placebo_recipe_id
              and placebo.document_id = loss.document_id and placebo.call_id = loss.call_id
                  and placebo.information is not null) as placebos,
           means.information
    from losses loss
    join candidate_calls candidate
        on candidate.sampling_recipe_id = rt.sampling_recipe_id
       and candidate.document_id = loss.document_id and candidate.call_id = loss.call_id
    left join call_information means
        on means.placebo_recipe_id = rt.placebo_recipe_id and means.document_id = loss.document_id
            and means.call_id = loss.call_id
    where cast(:at as integer) is null or candidate.position_char = cast(:at as integer)
) call
join documents document on document.document_id = call.document_id
where r.run_id = run_or_newest(:run_id)
order by call.gain_bound desc nulls last, rt.tool, call.call_id
limit :at_most
