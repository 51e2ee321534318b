-- Rows to check: one for each of checked_members and stage of a tool that the document passes; the ledger, and the rows that exist.
--   ledger_rows                      1 where the stage has finished the document
--   rows_written, rows_found         rows by the ledger (execute: calls with a result or a reason), and rows that exist
--   rows_expected                    rows that the stage before asks for
--   items_in, items_out              samples drawn, and samples that became candidates, duplicates or were rejected with a reason
--   pruned_in_ledger, pruned_found   positions that were not sampled, by the ledger and by their rows
create temporary table checked_ledger as
with decided as (
    select decision.document_id, count(*) as decisions, bool_or(decision.kept) as is_kept
    from checked_members member
    join filter_decisions decision on decision.document_id = member.variant_id
    where decision.filter_recipe_id = :filter_recipe_id
    group by decision.document_id
),
called as (
    select call.document_id, count(*) as calls, count(result.input_key) as answered
    from checked_members member
    join candidate_calls call on call.document_id = member.variant_id
    left join call_results result
        on result.tool = :tool
       and result.tool_version = :tool_version
       and result.input_key = call.input_key
    where call.sampling_recipe_id = :sampling_recipe_id
    group by call.document_id
),
judged as (
    select loss.document_id, count(*) as losses
    from checked_members member
    join call_losses loss on loss.document_id = member.variant_id
    where loss.scoring_recipe_id = :scoring_recipe_id
    group by loss.document_id
),
pruned as (
    select position.document_id, count(*) as positions
    from checked_members member
    join pruned_positions position on position.document_id = member.variant_id
    where position.sampling_recipe_id = :sampling_recipe_id
    group by position.document_id
),
ledger as (
    select
        done.stage, done.document_id, done.rows_written,
        coalesce(cast(counts ->> 'positions_pruned_below' as bigint), 0) as positions_pruned,
        coalesce(cast(counts ->> 'samples' as bigint), 0) as samples,
        coalesce(cast(counts ->> 'candidates' as bigint), 0)
            + coalesce(cast(counts ->> 'duplicates_merged' as bigint), 0)
            + coalesce(
                (select sum(cast(count.value as bigint))
                 from jsonb_each_text(counts) count
                 where starts_with(count.key, 'sample_')), 0) as samples_accounted_for
    from checked_members member
    join stage_ledger done on done.document_id = member.variant_id
    where done.recipe_id in (:filter_recipe_id, :sampling_recipe_id, :execution_recipe_id, :scoring_recipe_id)
),
due as (
    select stages.stage, member.variant_id as document_id, decided.decisions
    from checked_members member
    left join decided on decided.document_id = member.variant_id
    cross join (values ('filter'), ('sample'), ('execute'), ('score')) as stages (stage)
    where (stages.stage = 'filter' or decided.is_kept)
)
select
    due.stage || ' of ' || cast(due.document_id as text) as stage_of_document,
    case when ledger.document_id is null then 0 else 1 end as ledger_rows,
    case due.stage
        when 'execute' then coalesce(called.answered, 0)  -- results are shared, so the ledger's own number is smaller
        else coalesce(ledger.rows_written, 0)
    end as rows_written,
    case due.stage
        when 'filter' then coalesce(due.decisions, 0)
        when 'score' then coalesce(judged.losses, 0)
        else coalesce(called.calls, 0)
    end as rows_found,
    case due.stage
        when 'filter' then coalesce(due.decisions, 0)
        else coalesce(called.calls, 0)
    end as rows_expected,
    case due.stage when 'sample' then coalesce(ledger.samples, 0) else 0 end as items_in,
    case due.stage when 'sample' then coalesce(ledger.samples_accounted_for, 0) else 0 end as items_out,
    case due.stage when 'sample' then coalesce(ledger.positions_pruned, 0) else 0 end as pruned_in_ledger,
    case due.stage when 'sample' then coalesce(pruned.positions, 0) else 0 end as pruned_found
from due
left join called on called.document_id = due.document_id
left join judged on judged.document_id = due.document_id
left join pruned on pruned.document_id = due.document_id
left join ledger on ledger.document_id = due.document_id and ledger.stage = due.stage
