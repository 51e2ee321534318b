create view call_placebos as
select rt.run_id, rt.tool, call.document_id, call.call_id, call.number, call.source_call_id, call.source_document_id, call.result,
       call.loss_with_result, call.reduction, call.reduction_bound, call.information, call.is_sampled, call.placebo_information, call.reason
from run_tools rt
cross join lateral (
    -- Within the lateral query the recipe is a constant, so that only its partition is read.
    with placebo as (
        select * from placebo_losses where placebo_recipe_id = rt.placebo_recipe_id
    )
    select member.document_id, placebo.call_id, placebo.number, source.call_id as source_call_id,
           source.document_id as source_document_id, source.result, placebo.loss_with_result, placebo.reduction,
           placebo.reduction_bound, placebo.information, placebo.is_sampled, placebo.placebo_information, placebo.reason
    from placebo
    join run_tool_documents member
        on member.run_id = rt.run_id and member.tool = rt.tool and member.variant_id = placebo.document_id
    left join placebo_pool_results source
        on source.placebo_recipe_id = rt.placebo_recipe_id and source.source = placebo.source
) call;
comment on view call_placebos is 'The placebos of every call of every run that has some: which result of which other call was scored in its place, and what it saves.';
comment on column call_placebos.run_id is 'The run.';
comment on column call_placebos.tool is 'The tool''s name.';
comment on column call_placebos.document_id is 'The document of the call.';
comment on column call_placebos.call_id is 'The call.';
comment on column call_placebos.number is 'Number of the placebo, from 1.';
comment on column call_placebos.source_call_id is 'The call that the result is of; null where its text was forgotten.';
comment on column call_placebos.source_document_id is 'That call''s document.';
comment on column call_placebos.result is 'The result that was scored in the call''s place.';
comment on column call_placebos.loss_with_result is 'L(e(c, r'')), nats; null where it was not computed.';
comment on column call_placebos.reduction is 'The placebo reduction L- - L(e(c, r'')), nats; null where reason says why.';
comment on column call_placebos.reduction_bound is 'The same, or with reason pruned_below a number that it does not exceed.';
comment on column call_placebos.information is 'What the call''s own result saves beyond this one, nats; null for a placebo beyond the first K.';
comment on column call_placebos.is_sampled is 'Whether it belongs to the sample for the false-discovery rate.';
comment on column call_placebos.placebo_information is 'Of a sampled placebo that reaches prune_below: the information that it would have as a result, nats.';
comment on column call_placebos.reason is 'Why there is no placebo reduction: pruned_below, no_other_result, loss_not_finite, process_killed or out_of_memory.';
