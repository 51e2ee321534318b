-- Rows to check: what was not computed in checked_members. Each pruned position and call, with the most that a call could save.
create temporary table checked_pruned as
with pruned as (
    select
        'position ' || position.position_char || ' of ' || cast(position.document_id as text) as pruned,
        position.loss_without_call as bound
    from checked_members member
    join pruned_positions position on position.document_id = member.variant_id
    where position.sampling_recipe_id = :sampling_recipe_id
    union all
    select 'call ' || cast(call_id as text), reduction_bound
    from checked_work
    where is_judged and reason = 'pruned_below'
)
select pruned.pruned, pruned.bound, tool.prune_below
from pruned
join run_tools tool on tool.run_id = :run_id and tool.tool = :tool
