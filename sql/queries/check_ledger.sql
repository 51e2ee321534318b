-- What the ledger says of one tool in one run beside what is there: one row a stage and document that the stage had to do.
--   ledger_rows                 1 where the stage has finished the document
--   rows_written, rows_found    rows by the ledger (execute: calls with a result or a reason), and rows that are there
--   rows_expected               rows that the stage before asks for
--   items_in, items_out         samples drawn, and samples that became candidates, duplicates or were rejected with a reason
select * from (
with registered as (
    select *
    from run_tools
    where run_id = current_setting('toolformer.run_id')
      and tool = current_setting('toolformer.tool')
),
members as (
    select document_id
    from run_documents
    where run_id = current_setting('toolformer.run_id')
),
decided as (
    select decision.document_id, count(*) as decisions, bool_or(decision.kept) as is_kept
    from registered
    join filter_decisions decision on decision.filter_recipe_id = registered.filter_recipe_id
    group by decision.document_id
),
called as (
    select call.document_id, count(*) as calls, count(result.input_key) as answered
    from registered
    join candidate_calls call on call.sampling_recipe_id = registered.sampling_recipe_id
    left join call_results result
        on result.tool = registered.tool
       and result.tool_version = registered.tool_version
       and result.input_key = call.input_key
    group by call.document_id
),
judged as (
    select loss.document_id, count(*) as losses
    from registered
    join call_losses loss on loss.scoring_recipe_id = registered.scoring_recipe_id
    group by loss.document_id
),
stages as (
    select stage, recipe_id
    from registered
    cross join lateral (values
        ('filter', registered.filter_recipe_id), ('sample', registered.sampling_recipe_id),
        ('execute', registered.execution_recipe_id), ('score', registered.scoring_recipe_id)
    ) as recipe (stage, recipe_id)
)
select
    stages.stage || ' of ' || cast(members.document_id as text) as stage_of_document,
    case when ledger.document_id is null then 0 else 1 end as ledger_rows,
    case stages.stage
        when 'execute' then coalesce(called.answered, 0)  -- results are shared, so the ledger's own number is smaller
        else coalesce(ledger.rows_written, 0)
    end as rows_written,
    case stages.stage
        when 'filter' then coalesce(decided.decisions, 0)
        when 'score' then coalesce(judged.losses, 0)
        else coalesce(called.calls, 0)
    end as rows_found,
    case stages.stage
        when 'filter' then coalesce(decided.decisions, 0)
        else coalesce(called.calls, 0)
    end as rows_expected,
    coalesce(cast(ledger.counts ->> 'samples' as bigint), 0) as items_in,
    coalesce(rejected.samples, 0)
        + coalesce(cast(ledger.counts ->> 'candidates' as bigint), 0)
        + coalesce(cast(ledger.counts ->> 'duplicates_merged' as bigint), 0) as items_out
from stages
cross join members
left join decided on decided.document_id = members.document_id
left join called on called.document_id = members.document_id
left join judged on judged.document_id = members.document_id
left join stage_ledger ledger
    on ledger.stage = stages.stage
   and ledger.recipe_id = stages.recipe_id
   and ledger.document_id = members.document_id
left join lateral (
    select sum(cast(count.value as bigint)) as samples
    from jsonb_each_text(ledger.counts) count
    where stages.stage = 'sample' and starts_with(count.key, 'sample_')
) rejected on true
where stages.stage = 'filter' or decided.is_kept
) as ledger
