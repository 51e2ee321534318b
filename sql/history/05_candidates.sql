create view candidates as
select rt.run_id, rt.tool, member.document_id, sampled.call_id, sampled.text_before, sampled.call_text,
       loss.result, sampled.text_after,
       call_outcome(
           loss.call_id is not null, loss.reason, loss.gain_bound, rt.keep_threshold, loss.probability_with,
           placebo.probability) as outcome,
       case outcome
           when 'sampled' then (
               select min(failed.reason)
               from failed_documents failed
               where failed.document_id = sampled.document_id
                 and failed.recipe_id in (rt.execution_recipe_id, rt.scoring_recipe_id)
           )
           else loss.reason
       end as reason,
       case
           when outcome <> 'kept' then null
           when choice.call_id is not null then coalesce(choice.left_out, 'released')
           when sampled.input_only_after then 'input_only_after'
           when made.release_id is null then 'no_release'
           when list_contains(made.lacking_tools, rt.tool)
               or run.parameters ->> '$.max_examples_per_tool' is null
               then 'not_in_release'
           else 'above_max_examples'
       end as release_outcome,
       loss.loss_without_call, loss.loss_without_result, loss.loss_with_result, loss.loss_reduction,
       loss.reduction_bound, loss.gain_bound,
       case when loss.reason is null then call_gain(loss.gain_bound, loss.probability_with,
           placebo.probability) end as gain,
       loss.probability_without, placebo.probability as placebo_probability, loss.probability_with,
       placebo.placebo_reduction, placebo.information, coalesce(placebo.placebos, 0) as placebos,
       rt.keep_threshold, rt.keep_rule,
       sampled.position_char, sampled.position_token, sampled.position_probability, sampled.paragraph,
       sampled.call_input,
       sampled.effective_input, sampled.input_key, sampled.sample_count,
           coalesce(sampled.proposed_by, 'model') as proposed_by, sampled.input_only_after,
       loss.result_rank, loss.loss_without_call_full_context, loss.number_format, sampled.url,
       sampled.document_date,
       sampled.document_id as variant_id, member.ordinal, rt.sampling_recipe_id, rt.execution_recipe_id,
       rt.scoring_recipe_id, loss.result_follows,
       cast(member.document_id as uuid) as document_uuid, cast(sampled.document_id as uuid) as variant_uuid,
       cast(sampled.call_id as uuid) as call_uuid
from run_tools rt
join annotation_runs run on run.run_id = rt.run_id
left join run_releases made on made.run_id = rt.run_id
join candidate_calls sampled on sampled.sampling_recipe_id = rt.sampling_recipe_id
join run_tool_documents member
    on member.run_id = rt.run_id and member.tool = rt.tool and member.variant_id = sampled.document_id
left join call_losses loss
    on loss.scoring_recipe_id = rt.scoring_recipe_id and loss.document_id = sampled.document_id
   and loss.call_id = sampled.call_id
left join call_information placebo
    on placebo.placebo_recipe_id = rt.placebo_recipe_id and placebo.document_id = sampled.document_id
   and placebo.call_id = sampled.call_id
left join release_choices choice on choice.release_id = made.release_id and choice.call_id = sampled.call_id;

create macro candidates_of(run := '') as table select * from candidates where run_id = run_or_newest(run);
