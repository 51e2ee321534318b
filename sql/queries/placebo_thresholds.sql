-- A tool's calls in a run between its sampled placebos, from below: prune_below and each reduction of a placebo as the lower end of an
-- interval, with the number of placebos there, and the number and the smallest of the calls beyond it, up to the next placebo.
with changed as (
    select case when :reads_record then variant_id else document_id end as document_id, case when has_joined then 1 else -1 end as sign
    from differing_members(:corpus_id, :at_version, :below_ordinal, :counted_version, :counted_ordinal)
),
found as (
    select changed.sign, loss.document_id, loss.loss_reduction as reduction, false as is_placebo
    from changed
    join call_losses loss on loss.document_id = changed.document_id
    where loss.scoring_recipe_id = :scoring_recipe_id
      and run_keeps(loss.reason, loss.loss_reduction, :prune_below,
          :placebo_recipe_id, loss.document_id, loss.call_id, cast(:tau_information as double precision))
    union all
    select changed.sign, placebo.document_id, placebo.reduction, true
    from changed
    join placebo_losses placebo on placebo.document_id = changed.document_id
    where placebo.placebo_recipe_id = :placebo_recipe_id
      and placebo.is_sampled
      and placebo.reduction >= :prune_below
      and (cast(:tau_information as double precision) is null or placebo.placebo_information >= :tau_information)
),
placebo as (
    select reduction, count(*) as placebos, row_number() over (order by reduction) as number from found where is_placebo group by reduction
),
-- As negative numbers: width_bucket then counts the placebos at or above a call, so that a call that equals a placebo lies below it.
ends as (
    select coalesce(array_agg(-reduction order by reduction desc), '{}') as negative, count(*) as placebos from placebo
),
call as (
    select case when ends.placebos = 0 then 0 else ends.placebos - width_bucket(-found.reduction, ends.negative) end as number,
           count(*) as calls, min(found.reduction) as smallest
    from found
    cross join ends
    where not found.is_placebo
    group by 1
),
interval as (
    select 0 as number, cast(:prune_below as double precision) as lower_end, 0 as placebos
    union all
    select number, reduction, placebos from placebo
)
select interval.lower_end, interval.placebos as placebos_at_lower_end, coalesce(call.calls, 0) as calls, call.smallest as smallest_call
from interval
left join call on call.number = interval.number
order by interval.number
