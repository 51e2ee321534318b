-- The rows of yield_by_stage of a tool of a run, after those of threshold_counts: those of its base, and what counted_documents adds and
-- subtracts; what the release holds and leaves out is counted anew.
insert into finished_run_yield (run_id, tool, step, stage, reason, is_loss, count, documents)
with decisions as (
    select decision.kept, decision.reason, sum(document.sign) as paragraphs
    from counted_documents document
    join filter_decisions decision
        on decision.filter_recipe_id = :filter_recipe_id and decision.document_id = document.document_id
    group by decision.kept, decision.reason
),
ledger as materialized (
    select done.stage, done.counts, document.sign
    from counted_documents document
    cross join (values ('sample', cast(:sampling_recipe_id as text)), ('execute', :execution_recipe_id), ('score', :scoring_recipe_id),
                       ('placebo', :placebo_recipe_id)) stages (stage, recipe_id)
    join stage_ledger done
        on done.recipe_id = stages.recipe_id and done.document_id = document.document_id and done.stage = stages.stage
),
scored as (
    select coalesce(sum(document.sign), 0) as calls,
           coalesce(sum(document.sign) filter (where is_kept(loss.reason, loss.loss_reduction, :keep_threshold)), 0) as reached
    from counted_documents document
    join call_losses loss on loss.scoring_recipe_id = :scoring_recipe_id and loss.document_id = document.document_id
    where loss.reason is null
),
kept as (
    select now.calls, now.texts, now.calls - now.releasable_calls as input_only_after, now.calls - base.calls as more
    from finished_run_thresholds now
    join run_tools tool on tool.run_id = now.run_id and tool.tool = now.tool and tool.keep_threshold = now.threshold
    join finished_run_thresholds base on base.run_id = :base_run_id and base.tool = now.tool and base.threshold = now.threshold
    where now.run_id = :run_id and now.tool = :tool
),
released as (
    select made.left_out -> :tool as left_out, count(call.call_id) as calls
    from run_releases made
    left join release_calls call on call.release_id = made.release_id and call.tool = :tool
    where made.run_id = :run_id
    group by made.left_out
),
left_out as (
    select counted.name, counted.count::bigint as count
    from released
    cross join lateral jsonb_each_text(released.left_out) as counted (name, count)
),
summed as (
    select step, stage, reason, is_loss, sum(count) as count, sum(documents) as documents
    from (
        select step, stage, reason, is_loss, count, documents
        from finished_run_yield
        where run_id = :base_run_id and tool = :tool and step < 6
        union all
        select 1, 'filter', 'texts', false, sum(sign), null from counted_documents
        union all
        select 1, 'filter', 'paragraphs', false, sum(paragraphs), null from decisions
        union all
        select 1, 'filter', 'kept_paragraphs', false, sum(paragraphs) filter (where kept), null from decisions
        union all
        select 1, 'filter', reason, true, paragraphs, null from decisions where not kept
        union all
        select case ledger.stage when 'sample' then 2 when 'execute' then 3 when 'score' then 4 else 5 end, ledger.stage, counted.name,
               counts_a_loss(counted.name),
               sum(ledger.sign * counted.count::bigint), sum(ledger.sign)
        from ledger
        cross join lateral jsonb_each_text(ledger.counts) as counted (name, count)
        group by ledger.stage, counted.name
        union all
        select 2, 'sample', 'texts_without_position', true, sum(sign), null
        from ledger
        where stage = 'sample'
          and coalesce((counts ->> 'positions')::bigint, 0) = 0
          and coalesce((counts ->> 'positions_pruned_below')::bigint, 0) = 0
          and not counts ?| array['process_killed', 'out_of_memory']
    ) added
    group by step, stage, reason, is_loss
)
select :run_id, :tool, step, stage, reason, is_loss, coalesce(count, 0), documents
from summed
-- A reason that no document has any more has no row.
where documents > 0
   or documents is null and (count > 0 or reason in ('texts', 'paragraphs', 'kept_paragraphs'))
union all
select :run_id, :tool, 6, 'keep', 'kept', false, calls, null from kept
union all
select :run_id, :tool, 6, 'keep', 'kept_texts', false, texts, null from kept
union all
select :run_id, :tool, 6, 'keep', 'below_threshold', true, base.count + scored.calls - scored.reached, null
from finished_run_yield base
cross join scored
cross join kept
where base.run_id = :base_run_id and base.tool = :tool and base.stage = 'keep' and base.reason = 'below_threshold'
union all
select :run_id, :tool, 6, 'keep', 'below_tau_information', true, base.count + scored.reached - kept.more, null
from finished_run_yield base
cross join scored
cross join kept
where base.run_id = :base_run_id and base.tool = :tool and base.stage = 'keep' and base.reason = 'below_tau_information'
union all
select :run_id, :tool, 7, 'release', 'input_only_after', true, input_only_after, null from kept
union all
select :run_id, :tool, 7, 'release', 'released', false, calls, null from released
union all
select :run_id, :tool, 7, 'release', name, true, count, null from left_out
union all
select :run_id, :tool, 7, 'release', 'not_in_release', true,
       kept.calls - kept.input_only_after - released.calls - (select coalesce(sum(count), 0)::bigint from left_out), null
from kept
cross join released
