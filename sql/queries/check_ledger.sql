-- The documents in checked_members: what the filter decided, the rows that exist, and what the ledger says of each stage; its columns are null
-- where the stage has not finished the document.
create temporary table checked_documents as
with decided as (
    select decision.document_id, count(*) as decisions, bool_or(decision.kept) as is_kept
    from checked_members member
    join filter_decisions decision on decision.document_id = member.variant_id
    where decision.filter_recipe_id = :filter_recipe_id
    group by decision.document_id
),
worked as (
    select
        document_id,
        count(*) filter (where is_candidate) as calls,
        count(*) filter (where is_candidate and is_answered) as answered,
        count(*) filter (where is_judged) as losses
    from checked_work
    group by document_id
),
placebo as (
    select placebo.document_id, count(*) as placebos
    from checked_members member
    join placebo_losses placebo on placebo.document_id = member.variant_id
    where placebo.placebo_recipe_id = :placebo_recipe_id
    group by placebo.document_id
),
pruned as (
    select position.document_id, count(*) as positions
    from checked_members member
    join pruned_positions position on position.document_id = member.variant_id
    where position.sampling_recipe_id = :sampling_recipe_id
    group by position.document_id
)
select
    member.variant_id as document_id,
    coalesce(decided.is_kept, false) as is_kept,
    coalesce(decided.decisions, 0) as decisions,
    coalesce(worked.calls, 0) as calls,
    coalesce(worked.answered, 0) as answered,
    coalesce(worked.losses, 0) as losses,
    coalesce(pruned.positions, 0) as pruned_found,
    filtered.rows_written as filtered,
    sampled.rows_written as sampled,
    executed.rows_written as executed,
    scored.rows_written as scored,
    cast(:placebo_recipe_id as text) is not null as asks_for_placebos,
    placed.rows_written as placed,
    coalesce(placebo.placebos, 0) as placebos,
    coalesce(cast(sampled.counts ->> 'positions_pruned_below' as bigint), 0) as pruned_in_ledger,
    coalesce(cast(sampled.counts ->> 'samples' as bigint), 0) as samples,
    coalesce(cast(sampled.counts ->> 'sample_without_end' as bigint), 0) as without_end,
    coalesce(cast(sampled.counts ->> 'candidates' as bigint), 0)
        + coalesce(cast(sampled.counts ->> 'duplicates_merged' as bigint), 0)
        + coalesce(
            (select sum(cast(count.value as bigint))
             from jsonb_each_text(sampled.counts) count
             where starts_with(count.key, 'sample_')), 0) as samples_accounted_for
from checked_members member
left join decided on decided.document_id = member.variant_id
left join worked on worked.document_id = member.variant_id
left join pruned on pruned.document_id = member.variant_id
left join placebo on placebo.document_id = member.variant_id
left join stage_ledger filtered
    on filtered.document_id = member.variant_id and filtered.recipe_id = :filter_recipe_id and filtered.stage = 'filter'
left join stage_ledger sampled
    on sampled.document_id = member.variant_id and sampled.recipe_id = :sampling_recipe_id and sampled.stage = 'sample'
left join stage_ledger executed
    on executed.document_id = member.variant_id and executed.recipe_id = :execution_recipe_id and executed.stage = 'execute'
left join stage_ledger scored
    on scored.document_id = member.variant_id and scored.recipe_id = :scoring_recipe_id and scored.stage = 'score'
left join stage_ledger placed
    on placed.document_id = member.variant_id and placed.recipe_id = :placebo_recipe_id and placed.stage = 'placebo';

-- Rows to check: one for each document and stage of a tool that it passes; the ledger, and the rows that exist.
--   ledger_rows                      1 where the stage has finished the document
--   rows_written, rows_found         rows by the ledger (execute: calls with a result or a reason), and rows that exist
--   rows_expected                    rows that the stage before asks for
create temporary view checked_ledger as
select
    stages.stage || ' of ' || cast(document_id as text) as stage_of_document,
    case when in_ledger is null then 0 else 1 end as ledger_rows,
    -- Results are shared, so the ledger's own number is smaller.
    case stages.stage when 'execute' then answered else coalesce(in_ledger, 0) end as rows_written,
    rows_found,
    rows_expected
from checked_documents
cross join lateral (values
    ('filter', filtered, decisions, decisions),
    ('sample', sampled, calls, calls),
    ('execute', executed, calls, calls),
    ('score', scored, losses, calls),
    ('placebo', placed, placebos, placebos)
) as stages (stage, in_ledger, rows_found, rows_expected)
where stages.stage = 'filter' or is_kept and (stages.stage <> 'placebo' or asks_for_placebos);

-- Rows to check: the documents that were sampled.
--   items_in, items_out              samples drawn, and samples that became candidates, duplicates or were rejected with a reason
--   without_end                      of the samples drawn, those that the call length cut off
--   pruned_in_ledger, pruned_found   positions that were not sampled, by the ledger and by their rows
create temporary view checked_samples as
select
    'sample of ' || cast(document_id as text) as stage_of_document,
    samples as items_in,
    samples_accounted_for as items_out,
    without_end,
    pruned_in_ledger,
    pruned_found
from checked_documents
where is_kept
