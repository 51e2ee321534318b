-- Rows to check: what was not computed for one tool in one run. Each pruned position and call, with the most that a call could save.
create temporary table checked_pruned as
with pruned as (
    select
        'position ' || position_char || ' of ' || cast(document_id as text) as pruned,
        document_id,
        loss_without_call as bound
    from pruned_positions
    where sampling_recipe_id = :sampling_recipe_id
    union all
    select 'call ' || cast(call_id as text), document_id, reduction_bound
    from call_losses
    where scoring_recipe_id = :scoring_recipe_id and reason = 'pruned_below'
)
select pruned.pruned, pruned.bound, tool.prune_below
from pruned
join run_tool_documents member
    on member.run_id = :run_id and member.tool = :tool and member.variant_id = pruned.document_id
join run_tools tool on tool.run_id = member.run_id and tool.tool = :tool
