-- Numbers of a run: computed, stored when it ends, and those of the run before with the difference added.

-- name: tools
-- The tools of a run, with what their numbers are counted by.
select tool, filter_recipe_id, sampling_recipe_id, execution_recipe_id, scoring_recipe_id, placebo_recipe_id, keep_threshold, prune_below,
       tau_information, reads_record
from run_tools
where run_id = :run_id
order by tool

-- name: forget
-- Delete the stored numbers of a run, so that the views compute them.
delete from finished_run_thresholds where run_id = :run_id;
delete from finished_run_progress where run_id = :run_id;
delete from finished_run_reductions where run_id = :run_id;
delete from finished_run_yield where run_id = :run_id;
delete from finished_run_work where run_id = :run_id;
update annotation_runs set numbers_stored_at = null where run_id = :run_id

-- name: base
-- The run whose stored numbers those of a tool of a run follow from: the newest with the same recipes and keep rule, all of whose documents
-- were done. None of its rows was deleted since.
select base.run_id, base.corpus_version, base.ordinal_limit
from annotation_runs run
join run_tools tool on tool.run_id = run.run_id and tool.tool = :tool
join run_tools base_tool
    on base_tool.tool = tool.tool and base_tool.scoring_recipe_id = tool.scoring_recipe_id
   and base_tool.execution_recipe_id = tool.execution_recipe_id and base_tool.sampling_recipe_id = tool.sampling_recipe_id
   and base_tool.filter_recipe_id = tool.filter_recipe_id and base_tool.keep_threshold = tool.keep_threshold
   and base_tool.prune_below = tool.prune_below and base_tool.reads_record = tool.reads_record
   and base_tool.tau_information is not distinct from tool.tau_information
   and base_tool.placebo_recipe_id is not distinct from tool.placebo_recipe_id
join annotation_runs base
    on base.run_id = base_tool.run_id and base.corpus_id = run.corpus_id and base.corpus_version <= run.corpus_version
join stored_runs stored on stored.run_id = base.run_id
where run.run_id = :run_id
  and base.run_id <> run.run_id
  and (select bool_and(done = total) and bool_or(stage = 'placebo') = has_placebos(run.parameters, tool.placebo_recipe_id)
       from finished_run_progress where run_id = base.run_id and tool = :tool)
  and not exists (select from forgotten_documents where coalesce(removed_at, 'infinity') >= stored.stored_at)
  and not exists (
      select from recipes
      where recipe_id in (
                tool.filter_recipe_id, tool.sampling_recipe_id, tool.execution_recipe_id, tool.scoring_recipe_id, tool.placebo_recipe_id)
        and dropped_at >= stored.stored_at)
order by (base.ordinal_limit is not distinct from run.ordinal_limit) desc, base.corpus_version desc, stored.stored_at desc
limit 1

-- name: compute
-- The numbers of a tool of a run, counted over all its documents by the views.
insert into finished_run_thresholds (run_id, tool, threshold, calls, texts, releasable_calls)
select run_id, tool, threshold, calls, texts, releasable_calls from threshold_counts where run_id = :run_id and tool = :tool;
insert into finished_run_progress (run_id, tool, step, stage, done, total)
select run_id, tool, step, stage, done, total from annotation_progress where run_id = :run_id and tool = :tool;
insert into finished_run_yield (run_id, tool, step, stage, reason, is_loss, count, documents)
select run_id, tool, step, stage, reason, is_loss, count, documents from yield_by_stage where run_id = :run_id and tool = :tool

-- name: compute_reductions
-- The histogram of a tool of a run, counted over all its documents by the view.
insert into finished_run_reductions (run_id, tool, bucket, calls, texts, releasable_calls, placebos)
select run_id, tool, bucket, calls, texts, releasable_calls, placebos from reduction_histogram where run_id = :run_id and tool = :tool

-- name: count_documents
-- The documents by which two runs differ, as a tool reads them, in the temporary table counted_documents: those that only the run has
-- count 1, those that only its base has count -1.
drop table if exists counted_documents;
create temporary table counted_documents on commit drop as
with counted as (
    select case when :reads_record then variant_id else document_id end as document_id,
           case when has_joined then 1 else -1 end as sign
    from differing_members(
        :corpus_id, :version, cast(:ordinal_limit as integer), :base_version, cast(:base_ordinal_limit as integer))
)
select document_id, sum(sign)::integer as sign from counted group by document_id having sum(sign) <> 0;
analyze counted_documents

-- name: add_thresholds
-- The rows of threshold_counts of a tool of a run: those of its base, and what counted_documents adds and subtracts.
insert into finished_run_thresholds (run_id, tool, threshold, calls, texts, releasable_calls)
with by_document as (
    select base.threshold, document.document_id, document.sign,
           count(*) as calls, count(*) filter (where not call.input_only_after) as releasable_calls
    from finished_run_thresholds base
    cross join counted_documents document
    join call_losses loss
        on loss.scoring_recipe_id = :scoring_recipe_id and loss.document_id = document.document_id
       and run_keeps(loss.reason, loss.loss_reduction, base.threshold,
           :placebo_recipe_id, loss.document_id, loss.call_id, cast(:tau_information as double precision))
    join candidate_calls call
        on call.sampling_recipe_id = :sampling_recipe_id and call.document_id = loss.document_id and call.call_id = loss.call_id
    where base.run_id = :base_run_id and base.tool = :tool
    group by base.threshold, document.document_id, document.sign
),
counted as (
    select threshold, sum(sign * calls) as calls, sum(sign) as texts, sum(sign * releasable_calls) as releasable_calls
    from by_document
    group by threshold
)
select :run_id, base.tool, base.threshold, base.calls + coalesce(counted.calls, 0), base.texts + coalesce(counted.texts, 0),
       base.releasable_calls + coalesce(counted.releasable_calls, 0)
from finished_run_thresholds base
left join counted using (threshold)
where base.run_id = :base_run_id and base.tool = :tool

-- name: add_reductions
-- The rows of reduction_histogram of a tool of a run: those of its base, and what counted_documents adds and subtracts.
insert into finished_run_reductions (run_id, tool, bucket, calls, texts, releasable_calls, placebos)
with reached as materialized (
    select document.document_id, document.sign, loss.loss_reduction, call.input_only_after
    from counted_documents document
    join call_losses loss
        on loss.scoring_recipe_id = :scoring_recipe_id and loss.document_id = document.document_id
       and run_keeps(loss.reason, loss.loss_reduction, :prune_below,
           :placebo_recipe_id, loss.document_id, loss.call_id, cast(:tau_information as double precision))
    join candidate_calls call
        on call.sampling_recipe_id = :sampling_recipe_id and call.document_id = loss.document_id and call.call_id = loss.call_id
),
best as (
    select sign, max(loss_reduction) as loss_reduction from reached group by document_id, sign
),
found as (
    select bucket, calls, texts, releasable_calls, placebos from finished_run_reductions where run_id = :base_run_id and tool = :tool
    union all
    select reduction_bucket(loss_reduction), sign, 0, case when input_only_after then 0 else sign end, 0 from reached
    union all
    select reduction_bucket(loss_reduction), 0, sign, 0, 0 from best
    union all
    select reduction_bucket(placebo.reduction), 0, 0, 0, document.sign
    from counted_documents document
    join placebo_losses placebo on placebo.document_id = document.document_id
    where placebo.placebo_recipe_id = cast(:placebo_recipe_id as text)
      and placebo.is_sampled
      and placebo.reduction >= :prune_below
      and (cast(:tau_information as double precision) is null or placebo.placebo_information >= :tau_information)
)
select :run_id, :tool, bucket, sum(calls), sum(texts), sum(releasable_calls), sum(placebos)
from found
group by bucket
having sum(calls) <> 0 or sum(placebos) <> 0

-- name: add_progress
-- The rows of annotation_progress of a tool of a run: those of its base, and what counted_documents adds and subtracts.
insert into finished_run_progress (run_id, tool, step, stage, done, total)
with documents as (
    select document.document_id, document.sign,
           exists (
               select from filter_decisions
               where filter_recipe_id = :filter_recipe_id and document_id = document.document_id and kept) as is_kept
    from counted_documents document
),
stages as (
    select *
    from (values ('filter', cast(:filter_recipe_id as text)), ('sample', :sampling_recipe_id),
                 ('execute', :execution_recipe_id), ('score', :scoring_recipe_id), ('placebo', :placebo_recipe_id)) recipe (stage, recipe_id)
),
counted as (
    select stages.stage, coalesce(sum(document.sign), 0) as total,
           coalesce(sum(document.sign) filter (where done.document_id is not null), 0) as done
    from stages
    left join documents document on stages.stage = 'filter' or document.is_kept
    left join stage_ledger done
        on done.recipe_id = stages.recipe_id and done.document_id = document.document_id and done.stage = stages.stage
    group by stages.stage
)
select :run_id, base.tool, base.step, base.stage, base.done + counted.done, base.total + counted.total
from finished_run_progress base
join counted using (stage)
where base.run_id = :base_run_id and base.tool = :tool

-- name: add_yield
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

-- name: store
-- What a run did itself; and from now on the views show its stored numbers.
insert into finished_run_work (run_id, tool, stage, micro_batches, documents, rows_written, seconds)
select run_id, tool, stage, count(*), sum(documents), sum(rows_written), sum(seconds)
from micro_batches
where run_id = :run_id
group by run_id, tool, stage;
update annotation_runs
set previous_run_id = coalesce(previous_run_id, :previous_run_id),
    numbers_stored_at = now(),
    numbers_batch_id = (select coalesce(max(batch_id), 0) from micro_batches)
where run_id = :run_id
