create view scored_calls as
select rt.run_id, rt.tool, member.document_id, scored.call_id, candidate.text_before, candidate.call_text,
       scored.result, candidate.text_after,
       scored.loss_without_call, scored.loss_without_result, scored.loss_with_result, scored.loss_reduction,
       call_gain(scored.gain_bound, scored.probability_with, placebo.probability) as gain,
       scored.probability_without, placebo.probability as placebo_probability, scored.probability_with,
       placebo.placebo_reduction, placebo.information, coalesce(placebo.placebos, 0) as placebos,
       candidate.position_char, candidate.position_token, candidate.position_probability,
       candidate.paragraph, candidate.call_input,
       candidate.effective_input, candidate.sample_count,
           coalesce(candidate.proposed_by, 'model') as proposed_by, candidate.input_only_after,
           scored.result_rank,
       scored.loss_without_call_full_context, scored.number_format, candidate.url, candidate.document_date,
       scored.document_id as variant_id, rt.sampling_recipe_id, rt.execution_recipe_id,
       rt.scoring_recipe_id, scored.result_follows,
       cast(member.document_id as uuid) as document_uuid, cast(scored.document_id as uuid) as variant_uuid,
       cast(scored.call_id as uuid) as call_uuid, rt.keep_threshold, rt.keep_rule
from run_tools rt
join call_losses scored on scored.scoring_recipe_id = rt.scoring_recipe_id and scored.reason is null
join candidate_calls candidate
    on candidate.sampling_recipe_id = rt.sampling_recipe_id and candidate.document_id = scored.document_id
   and candidate.call_id = scored.call_id
join run_tool_documents member
    on member.run_id = rt.run_id and member.tool = rt.tool and member.variant_id = scored.document_id
left join call_information placebo
    on placebo.placebo_recipe_id = rt.placebo_recipe_id and placebo.document_id = scored.document_id
   and placebo.call_id = scored.call_id;

create macro scored_calls_of(run := '') as table select * from scored_calls where run_id = run_or_newest(run);
