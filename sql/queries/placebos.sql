-- Losses of placebos, and the rate of calls that are kept by chance.

-- name: forget_rates
-- The first of two that count at once is waited for: the second would insert the same rows.
select 1 from run_tools where run_id = :run_id and tool = :tool for no key update;
delete from placebo_counts where run_id = :run_id and tool = :tool;
delete from placebo_rates where run_id = :run_id and tool = :tool

-- name: base_counts
-- The newest earlier run whose counts of documents those of a tool of a run may start from: the same placebos and keep rule, over the same
-- corpus. Deleted with the counts where a text was forgotten since; no row where there is none.
select base.run_id as base_run_id, base.corpus_version as counted_version, coalesce(base.ordinal_limit, 2147483647) as counted_ordinal
from run_tools asked
join annotation_runs run on run.run_id = asked.run_id
join run_tools base_tool
    on base_tool.tool = asked.tool and base_tool.scoring_recipe_id = asked.scoring_recipe_id
   and base_tool.placebo_recipe_id = asked.placebo_recipe_id and base_tool.keep_threshold = asked.keep_threshold
   and base_tool.prune_below = asked.prune_below and base_tool.reads_record = asked.reads_record
   and base_tool.tau_information is not distinct from asked.tau_information
join annotation_runs base
    on base.run_id = base_tool.run_id and base.corpus_id = run.corpus_id and base.corpus_version <= run.corpus_version
where asked.run_id = :run_id
  and asked.tool = :tool
  and base.run_id <> asked.run_id
  and exists (select from placebo_counts counted where counted.run_id = base.run_id and counted.tool = asked.tool)
  and exists (
      select from placebo_rates rate
      where rate.run_id = base.run_id and rate.tool = asked.tool and rate.placebo_recipe_id = asked.placebo_recipe_id)
order by base.corpus_version desc, base.ordinal_limit is not distinct from run.ordinal_limit desc, base.started_at desc
limit 1

-- name: add_counts
-- How many documents of a tool of a run have so many sampled placebos and calls that the keep rule keeps, at each threshold: those of an
-- earlier run (:base_run_id; null where there is none), and those that joined or left the corpus since.
insert into placebo_counts (run_id, tool, threshold, placebos, calls, documents)
with changed as (
    select case when :reads_record then variant_id else document_id end as document_id, case when has_joined then 1 else -1 end as sign
    from differing_members(:corpus_id, :at_version, :below_ordinal, :counted_version, :counted_ordinal)
),
found as (
    select changed.sign, loss.document_id, loss.loss_reduction as reduction, false as is_placebo
    from changed
    join call_losses loss on loss.document_id = changed.document_id
    where loss.scoring_recipe_id = :scoring_recipe_id
      and run_keeps(loss.reason, loss.loss_reduction, (select min(threshold) from unnest(cast(:thresholds as double precision[])) lowest (threshold)),
          :placebo_recipe_id, loss.document_id, loss.call_id, cast(:tau_information as double precision))
    union all
    select changed.sign, placebo.document_id, placebo.reduction, true
    from changed
    join placebo_losses placebo on placebo.document_id = changed.document_id
    where placebo.placebo_recipe_id = :placebo_recipe_id
      and placebo.is_sampled
      and placebo.reduction >= (select min(threshold) from unnest(cast(:thresholds as double precision[])) lowest (threshold))
      and (cast(:tau_information as double precision) is null or placebo.placebo_information >= :tau_information)
),
by_document as (
    select asked.threshold, found.document_id, found.sign,
           count(*) filter (where found.is_placebo) as placebos, count(*) filter (where not found.is_placebo) as calls
    from found
    join unnest(cast(:thresholds as double precision[])) asked (threshold) on found.reduction >= asked.threshold
    group by asked.threshold, found.document_id, found.sign
),
added as (
    select threshold, placebos, calls, sign as documents from by_document
    union all
    select threshold, placebos, calls, documents
    from placebo_counts
    where run_id = :base_run_id and tool = :tool
)
select :run_id, :tool, threshold, placebos, calls, sum(documents)
from added
group by threshold, placebos, calls
having sum(documents) > 0

-- name: sample_size
-- How many calls of a tool of a run are sampled, and how many of them have a placebo: those of an earlier run, and of the documents that joined
-- or left the corpus since.
with changed as (
    select case when :reads_record then variant_id else document_id end as document_id, case when has_joined then 1 else -1 end as sign
    from differing_members(:corpus_id, :at_version, :below_ordinal, :counted_version, :counted_ordinal)
),
counted as (
    select coalesce(sum(changed.sign), 0) as sampled,
           coalesce(sum(changed.sign) filter (
               where placebo.source is not null and (placebo.reason is null or placebo.reason = 'pruned_below')), 0) as scored
    from changed
    join placebo_losses placebo on placebo.document_id = changed.document_id
    where placebo.placebo_recipe_id = :placebo_recipe_id and placebo.is_sampled
),
base as (
    select calls_sampled, placebos_scored from placebo_rates where run_id = :base_run_id and tool = :tool limit 1
)
select cast(counted.sampled + coalesce((select calls_sampled from base), 0) as bigint) as sampled,
       cast(counted.scored + coalesce((select placebos_scored from base), 0) as bigint) as scored
from counted

-- name: counts_of_run
select threshold, placebos, calls, documents from placebo_counts where run_id = :run_id and tool = :tool order by threshold, placebos, calls

-- name: insert_rates
insert into placebo_rates (run_id, tool, threshold, placebo_recipe_id, calls, placebos, placebos_scored, calls_sampled,
                           false_discovery_rate, rate_low, rate_high)
values (:run_id, :tool, :threshold, :placebo_recipe_id, :calls, :placebos, :placebos_scored, :calls_sampled,
        :false_discovery_rate, :rate_low, :rate_high)

-- name: rates_of_run
select threshold from placebo_rates where run_id = :run_id and tool = :tool and placebo_recipe_id = :placebo_recipe_id

-- name: thresholds
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

-- name: counts_at
-- How many documents of a tool of a run have so many sampled placebos and calls that the keep rule keeps at a threshold.
with changed as (
    select case when :reads_record then variant_id else document_id end as document_id, case when has_joined then 1 else -1 end as sign
    from differing_members(:corpus_id, :at_version, :below_ordinal, :counted_version, :counted_ordinal)
),
found as (
    select changed.sign, loss.document_id, loss.loss_reduction as reduction, false as is_placebo
    from changed
    join call_losses loss on loss.document_id = changed.document_id
    where loss.scoring_recipe_id = :scoring_recipe_id
      and run_keeps(loss.reason, loss.loss_reduction, :threshold,
          :placebo_recipe_id, loss.document_id, loss.call_id, cast(:tau_information as double precision))
    union all
    select changed.sign, placebo.document_id, placebo.reduction, true
    from changed
    join placebo_losses placebo on placebo.document_id = changed.document_id
    where placebo.placebo_recipe_id = :placebo_recipe_id
      and placebo.is_sampled
      and placebo.reduction >= :threshold
      and (cast(:tau_information as double precision) is null or placebo.placebo_information >= :tau_information)
),
by_document as (
    select document_id, count(*) filter (where is_placebo) as placebos, count(*) filter (where not is_placebo) as calls
    from found
    group by document_id
)
select placebos, calls, count(*) as documents from by_document group by placebos, calls order by placebos, calls

-- name: calls
-- The calls of these documents that have a result and losses, with their paragraph's bounds.
select loss.document_id, loss.call_id, decision.start_char, decision.end_char, call.position_token, call.call_input, call.call_text,
       loss.result, loss.reason, loss.loss_without_call, loss.loss_without_result, loss.loss_with_result,
       loss.loss_without_call_full_context, loss.number_format, loss.reduction_bound
from call_losses loss
join candidate_calls call
    on call.sampling_recipe_id = :sampling_recipe_id and call.document_id = loss.document_id and call.call_id = loss.call_id
join filter_decisions decision
    on decision.filter_recipe_id = :filter_recipe_id and decision.document_id = call.document_id and decision.paragraph = call.paragraph
where loss.scoring_recipe_id = :scoring_recipe_id
  and loss.document_id = any(cast(:document_ids as uuid[]))
  and loss.result is not null and (loss.reason is null or loss.reason = 'pruned_below')
order by loss.document_id, call.position_char, loss.call_id
