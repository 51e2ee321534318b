-- Seconds of calls, and the margin within which rounding decides.

-- name: fixed_call_seconds
select seconds from measured_call_seconds where tool = :tool and tool_version = :tool_version

-- name: measured_call_seconds
-- The median seconds of a tool's calls with a result: of this version, or else of the version that was executed last.
select tool_version as measured_version, percentile_cont(0.5) within group (order by seconds::double precision) as seconds, count(*) as calls
from call_results
where tool = :tool and reason is null
group by tool_version
order by tool_version = :tool_version desc, max(created_at) desc, tool_version
limit 1

-- name: fix_call_seconds
insert into measured_call_seconds (tool, tool_version, seconds, calls, measured_version)
values (:tool, :tool_version, :seconds, :calls, :measured_version)
on conflict do nothing

-- name: rounding_margin
-- What is allowed for rounding in a model's number format; no row if it was not measured.
select margin
from rounding_margins
where model_identity = :model_identity and device = :device and number_format = :number_format

-- name: insert_rounding_margin
-- Keep what was measured; the first of several processes counts.
insert into rounding_margins (model_identity, device, number_format, calls, mean_difference, largest_difference, margin)
values (:model_identity, :device, :number_format, :calls, :mean_difference, :largest_difference, :margin)
on conflict do nothing

-- name: work_of_tools
-- What a run itself sampled and scored, by tool: counts, mean lengths in characters, and the cards' names.
with own as (
    select batch.tool,
           sum(cast(batch.counts ->> 'paragraphs' as double precision)) as texts,
           sum(cast(batch.counts ->> 'positions' as double precision))
               - coalesce(sum(cast(batch.counts ->> 'positions_pruned_below' as double precision)), 0) as positions,
           sum(cast(batch.counts ->> 'samples' as double precision)) as samples,
           sum(cast(batch.counts ->> 'scored' as double precision)) as scored,
           coalesce(sum(cast(batch.counts ->> 'pruned_below' as double precision)), 0) as pruned,
           coalesce(sum(cast(batch.counts ->> 'verified_in_tf32' as double precision)), 0) as in_tf32,
           coalesce(sum(cast(batch.counts ->> 'verified_in_float32' as double precision)), 0) as in_float32,
           sum(batch.network_seconds) as network_seconds,
           array_agg(distinct batch.cards) filter (where batch.cards is not null) as cards
    from micro_batches batch
    where batch.run_id = :run_id and batch.stage in ('sample', 'score')
    group by batch.tool
)
select own.*, sampling.definition ->> 'dtype' as dtype, sampling.definition ->> 'proposer' as proposer,
       length(sampling.definition ->> 'prompt') as prompt_characters,
       (select cast(avg(piece.end_char - piece.start_char) as double precision)
        from (
            select end_char, start_char
            from filter_decisions
            where filter_recipe_id = tool.filter_recipe_id and filter_recipe_id = any (own_recipes) and kept
            limit 10000
        ) piece) as text_characters,
       (select cast(avg(length(call.call_text)) as double precision)
        from (
            select call_text
            from candidate_calls
            where sampling_recipe_id = tool.sampling_recipe_id and sampling_recipe_id = any (own_recipes)
            limit 10000
        ) call) as call_characters,
       (select cast(coalesce(avg(length(loss.result)), 0) as double precision)
        from (
            select result
            from call_losses
            where scoring_recipe_id = tool.scoring_recipe_id and scoring_recipe_id = any (own_recipes) and result is not null
            limit 10000
        ) loss) as result_characters
from own
cross join planned_recipes(:run_id) own_recipes  -- constants, so that no other partition is read
join run_tools tool on tool.run_id = :run_id and tool.tool = own.tool
join recipes sampling on sampling.recipe_id = tool.sampling_recipe_id
order by own.tool

-- name: store_predicted
-- Adds to the cost of a run what was predicted, by tool and in all.
update annotation_runs
set cost = cost || jsonb_build_object(
    'tools', (
        select jsonb_agg(tool || coalesce(cast(:by_tool as jsonb) -> (tool ->> 'tool'), '{}') order by tool ->> 'tool')
        from jsonb_array_elements(cost -> 'tools') tool),
    'total', (cost -> 'total') || cast(:total as jsonb))
where run_id = :run_id
