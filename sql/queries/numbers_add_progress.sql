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
