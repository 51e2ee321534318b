-- The calls that a release may hold, in the temporary table releasable_calls: kept by their tool's threshold, and their input not only
-- after them. Column left_out is null for the calls of the release. The others leave for one of two reasons:
--   better_call_at_position   another call at this position of the text saves more (of equal ones: has the smaller id)
--   above_max_examples        its tool has max_examples texts already, taken in the order of the texts' hashes (null: no limit)
create temporary table releasable_calls on commit drop as
with tools as (
    select *
    from unnest(
        cast(:tools as text[]), cast(:sampling_recipe_ids as text[]), cast(:execution_recipe_ids as text[]),
        cast(:scoring_recipe_ids as text[]), cast(:keep_thresholds as double precision[])
    ) as chosen (tool, sampling_recipe_id, execution_recipe_id, scoring_recipe_id, keep_threshold)
),
releasable as (
    select
        member.document_id, call.position_char, call.call_id, tools.tool, call.sampling_recipe_id,
        tools.execution_recipe_id, loss.scoring_recipe_id, loss.loss_reduction
    from tools
    join call_losses loss on loss.scoring_recipe_id = tools.scoring_recipe_id
    join candidate_calls call
        on call.sampling_recipe_id = tools.sampling_recipe_id
       and call.call_id = loss.call_id
    join run_tool_documents member
        on member.run_id = :run_id and member.tool = tools.tool and member.variant_id = call.document_id
    where loss.scoring_recipe_id = any (cast(:scoring_recipe_ids as text[]))  -- reads no other partition
      and call.sampling_recipe_id = any (cast(:sampling_recipe_ids as text[]))
      and is_kept(loss.reason, loss.loss_reduction, tools.keep_threshold)
      and not call.input_only_after
),
placed as (
    select
        *,
        row_number() over (partition by document_id, position_char order by loss_reduction desc, call_id) = 1 as is_best
    from releasable
),
numbered as (
    select *, dense_rank() over (partition by tool, is_best order by document_id) as example
    from placed
)
select
    document_id, position_char, call_id, tool, sampling_recipe_id, execution_recipe_id, scoring_recipe_id,
    case
        when not is_best then 'better_call_at_position'
        when example > cast(:max_examples as integer) then 'above_max_examples'
    end as left_out
from numbered
