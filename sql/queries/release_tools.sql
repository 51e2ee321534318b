-- The tools of a run in the order they were chosen: recipes, how many documents each stage has done, and the checks they failed.
select
    chosen.tool,
    run.model_identity,
    registered.sampling_recipe_id,
    registered.execution_recipe_id,
    registered.scoring_recipe_id,
    registered.keep_threshold,
    progress.documents,
    progress.filtered,
    progress.to_score,
    progress.scored,
    array(
        select result.check_name
        from quality_results result
        where result.run_id = :run_id
          and result.subject = chosen.tool
          and result.severity = 'fail'
          and not result.success
        order by result.check_name
    ) as failed_checks
from annotation_runs run
cross join lateral unnest(run.tools) with ordinality as chosen (tool, place)
left join run_tools registered on registered.run_id = run.run_id and registered.tool = chosen.tool
cross join lateral (
    select
        count(*) as documents,
        count(filter_ledger.document_id) as filtered,
        count(*) filter (where kept.is_kept) as to_score,
        count(score_ledger.document_id) filter (where kept.is_kept) as scored
    from run_tool_documents document
    left join stage_ledger filter_ledger
        on filter_ledger.stage = 'filter'
       and filter_ledger.recipe_id = registered.filter_recipe_id
       and filter_ledger.document_id = document.variant_id
    left join stage_ledger score_ledger
        on score_ledger.stage = 'score'
       and score_ledger.recipe_id = registered.scoring_recipe_id
       and score_ledger.document_id = document.variant_id
    cross join lateral (
        select exists (
            select from filter_decisions decision
            where decision.filter_recipe_id = registered.filter_recipe_id
              and decision.document_id = document.variant_id
              and decision.kept
        ) as is_kept
    ) kept
    where document.run_id = run.run_id and document.tool = registered.tool
) progress
where run.run_id = :run_id
order by chosen.place
