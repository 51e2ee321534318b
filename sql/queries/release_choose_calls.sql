-- The calls that a release may hold, in the temporary table releasable_calls. Column left_out is null for the calls of the release. The
-- others leave for one of two reasons:
--   better_call_at_position   another call at this position of the text saves more (of equal ones: has the smaller id)
--   above_max_examples        its tool has max_examples texts already, taken in the order of the hashes of what it reads (null: no limit)
create temporary table releasable_calls on commit drop as
with placed as (
    select
        *,
        row_number() over (partition by document_id, position_char order by loss_reduction desc, call_id) = 1 as is_best
    from choosable_calls
),
numbered as (
    select *, dense_rank() over (partition by tool, is_best order by variant_id) as example
    from placed
)
select
    document_id, position_char, call_id, variant_id, tool, sampling_recipe_id, execution_recipe_id, scoring_recipe_id,
    case
        when not is_best then 'better_call_at_position'
        when example > cast(:max_examples as integer) then 'above_max_examples'
    end as left_out
from numbered
