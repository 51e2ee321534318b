-- For each tool: how many of its calls in first_texts the release holds, and leaves out for each reason; and in how many of the tool's own
-- first texts it has the best call at some place.
with reached as (
    select distinct on (tool) tool, variant_id as last_text
    from first_texts
    order by tool, variant_id desc
)
select
    reached.tool,
    count(*) filter (where call.left_out is null) as released,
    count(*) filter (where call.left_out = 'better_call_at_position') as better_call_at_position,
    count(*) filter (where call.left_out = 'above_max_examples') as above_max_examples,
    count(distinct call.document_id) filter (
        where call.variant_id <= reached.last_text and call.left_out is distinct from 'better_call_at_position') as best_texts
from reached
join releasable_calls call on call.tool = reached.tool
group by reached.tool
order by reached.tool
