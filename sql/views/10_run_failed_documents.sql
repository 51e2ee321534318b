create view run_failed_documents as
select rt.run_id, rt.tool, failed.stage, cast(member.document_id as text) as document_id, failed.reason,
    failed.deaths, failed.failed_at
from failed_documents failed
join run_tools rt
    on failed.recipe_id in (rt.filter_recipe_id, rt.sampling_recipe_id, rt.execution_recipe_id,
        rt.scoring_recipe_id)
join run_tool_documents member
    on member.run_id = rt.run_id and member.tool = rt.tool and member.variant_id = failed.document_id;
comment on view run_failed_documents is
    'The documents of each run that a stage has given up, in this run or in an earlier one under the same '
    'recipe.';
comment on column run_failed_documents.stage is
    'The stage that gave it up: filter, sample, execute or score.';
call inherit_comments('run_failed_documents', 'run_documents', 'failed_documents');
