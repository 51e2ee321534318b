create view call_placebos as
select rt.run_id, rt.tool, call.*
from run_tools rt
cross join lateral (
    -- Within the lateral query the recipe is a constant, so that only its partition is read.
    with placebo as (
        select * from placebo_losses where placebo_recipe_id = rt.placebo_recipe_id
    )
    select cast(member.document_id as text) as document_id, cast(placebo.call_id as text) as call_id,
        placebo.number,
           cast(source.call_id as text) as source_call_id,
               cast(source.document_id as text) as source_document_id, source.result,
               placebo.loss_with_result, placebo.reduction,
           placebo.reduction_bound, placebo.information, placebo.is_sampled, placebo.probability_with,
               placebo.gain, placebo.reason
    from placebo
    join run_tool_documents member
        on member.run_id = rt.run_id and member.tool = rt.tool and member.variant_id = placebo.document_id
    left join placebo_pool_results source
        on source.placebo_recipe_id = rt.placebo_recipe_id and source.source = placebo.source
) call;
comment on view call_placebos is
    'The placebos of every call of every run that has some: which result of which other call was scored in '
    'its place, and what it saves.';
comment on column call_placebos.source_call_id is
    'The call that the result is of; null if its text was forgotten.';
comment on column call_placebos.source_document_id is 'That call''s document.';
comment on column call_placebos.result is 'The result that was scored in the call''s place.';
call inherit_comments('call_placebos', 'run_tool_documents', 'placebo_losses');
