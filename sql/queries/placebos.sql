-- Losses of placebos, and the rate of calls that are kept by chance.

-- name: forget_rates
-- The first of two that count at once is waited for: the second would insert the same rows.
select 1 from run_tools where run_id = :run_id and tool = :tool for no key update;
delete from placebo_counts where run_id = :run_id and tool = :tool;
delete from forgotten_numbers where run_id = :run_id and tool = :tool and kind = 'placebo_counts';
delete from placebo_rates where run_id = :run_id and tool = :tool

-- name: add_counts
-- As counts_at, at each threshold; returns what it adds. Parameters: numbers.counted of placebo_counts.
insert into placebo_counts (run_id, tool, threshold, placebos, calls, documents)
select :run_id, :tool, threshold, placebos, calls, sum(documents)
from (
    select threshold, placebos, calls, documents from placebo_counts where run_id = :base_run_id
        and tool = :tool
    union all
    select threshold, placebos, calls, sign
    from counted_by_document(
        cast(:rt as run_tools), cast(:run as annotation_runs), cast(:base as annotation_runs), :at_least,
            :thresholds, true)
) found
group by threshold, placebos, calls
having sum(documents) > 0
returning threshold, placebos, calls, documents

-- name: sample_size
-- How many calls of a tool of a run are sampled, and how many of them have a placebo.
select coalesce(cast(sum(sampled) as bigint), 0) as sampled,
    coalesce(cast(sum(scored) as bigint), 0) as scored
from (
    (select calls_sampled as sampled, placebos_scored as scored from placebo_rates where run_id = :base_run_id
        and tool = :tool limit 1)
    union all
    select cast(numbers ->> 'sampled' as bigint), cast(numbers ->> 'scored' as bigint)
    from forgotten_numbers
    where run_id = :base_run_id and tool = :tool and kind = 'placebo_counts'
    union all
    select sum(counted.sign), sum(counted.sign) filter (
               where placebo.source is not null
                   and (placebo.reason is null or placebo.reason = 'pruned_below'))
    from counted_documents(cast(:rt as run_tools), cast(:run as annotation_runs),
        cast(:base as annotation_runs)) counted
    join placebo_losses placebo on placebo.document_id = counted.document_id
    where placebo.placebo_recipe_id = :placebo_recipe_id and placebo.is_sampled
) found

-- name: insert_rates
insert into placebo_rates (run_id, tool, threshold, placebo_recipe_id, calls, placebos, placebos_scored,
    calls_sampled,
                           false_discovery_rate, rate_low, rate_high)
values (:run_id, :tool, :threshold, :placebo_recipe_id, :calls, :placebos, :placebos_scored, :calls_sampled,
        :false_discovery_rate, :rate_low, :rate_high)

-- name: rates_of_run
select threshold from placebo_rates where run_id = :run_id and tool = :tool
    and placebo_recipe_id = :placebo_recipe_id

-- name: thresholds
-- A tool's calls in a run between its sampled placebos, from below: prune_below and each gain of a placebo as
-- the lower end of an interval, with the number of placebos there, and the number and the smallest of the
-- calls beyond it, up to the next placebo.
with found as (
    select gain, is_placebo
    from counted_gains(cast(:rt as run_tools), cast(:run as annotation_runs), null, :prune_below, true)
),
placebo as (
    select gain, count(*) as placebos, row_number() over (order by gain) as number from found where is_placebo
        group by gain
),
-- As negative numbers: width_bucket then counts the placebos at or above a call, so that a call that equals a
-- placebo lies below it.
ends as (
    select coalesce(array_agg(-gain order by gain desc), '{}') as negative, count(*) as placebos from placebo
),
call as (
    select case when ends.placebos = 0 then 0
        else ends.placebos - width_bucket(-found.gain, ends.negative) end as number,
           count(*) as calls, min(found.gain) as smallest
    from found
    cross join ends
    where not found.is_placebo
    group by 1
),
interval as (
    select 0 as number, cast(:prune_below as double precision) as lower_end, 0 as placebos
    union all
    select number, gain, placebos from placebo
)
select interval.lower_end, interval.placebos as placebos_at_lower_end, coalesce(call.calls, 0) as calls,
    call.smallest as smallest_call
from interval
left join call on call.number = interval.number
order by interval.number

-- name: counts_at
-- How many documents of a tool of a run have so many sampled placebos and calls that the keep rule keeps at a
-- threshold.
select placebos, calls, count(*) as documents
from counted_by_document(cast(:rt as run_tools), cast(:run as annotation_runs), null, :threshold,
    array[:threshold], true)
group by placebos, calls
order by placebos, calls

-- name: calls
-- The calls of these documents that have a result and losses.
select loss.document_id, loss.call_id, call.position_token, call.call_input, call.call_text,
       loss.result, loss.reason, loss.loss_without_call, loss.loss_without_result, loss.loss_with_result,
       loss.loss_without_call_full_context, loss.number_format, loss.reduction_bound,
           loss.probability_without, loss.probability_with
from call_losses loss
join candidate_calls call
    on call.sampling_recipe_id = :sampling_recipe_id and call.document_id = loss.document_id
        and call.call_id = loss.call_id
where loss.scoring_recipe_id = :scoring_recipe_id
  and loss.document_id = any(cast(:document_ids as uuid[]))
  and loss.result is not null and (loss.reason is null or loss.reason = 'pruned_below')
order by loss.document_id, call.position_char, loss.call_id
