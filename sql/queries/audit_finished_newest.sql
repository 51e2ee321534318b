-- Of each recipe the newest version of each corpus that it has finished: as finished_work says, or the numbers of a finished run.
with said as (
    select recipe_id, corpus_id, version, ordinal_limit
    from finished_work
    union all
    select stage.recipe_id, run.corpus_id, run.corpus_version, coalesce(run.ordinal_limit, 2147483647)
    from annotation_runs run
    join stored_runs stored using (run_id)
    join run_tools rt using (run_id)
    cross join lateral (values ('filter', rt.filter_recipe_id), ('sample', rt.sampling_recipe_id), ('execute', rt.execution_recipe_id),
                               ('score', rt.scoring_recipe_id), ('placebo', rt.placebo_recipe_id)) stage (stage, recipe_id)
    join finished_run_progress progress
        on progress.run_id = run.run_id and progress.tool = rt.tool and progress.stage = stage.stage and progress.done = progress.total
    where not waits_for_work(rt, stored.stored_at)
)
select distinct on (recipe_id, corpus_id) recipe_id, corpus_id, version, ordinal_limit
from said
where recipe_id = any(cast(:recipe_ids as text[]))
order by recipe_id, corpus_id, version desc, ordinal_limit desc
