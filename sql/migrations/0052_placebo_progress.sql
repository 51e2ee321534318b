-- Placebos are a stage of annotation_progress, run_work and yield_by_stage. Numbers that were stored before have no row of it: a later
-- run whose base such a run would be counts once over all of its documents.

create function has_placebos(parameters jsonb, placebo_recipe_id text)
    returns boolean
    language sql immutable parallel safe
    return placebo_recipe_id is not null
        or coalesce((parameters ->> 'placebos')::bigint, 0) > 0
        or coalesce((parameters ->> 'placebo_sample')::bigint, 0) > 0;
comment on function has_placebos(jsonb, text) is 'Whether a tool of a run has the stage placebo: the run''s parameters ask for placebos, or they were scored for it later (run_tools.placebo_recipe_id).';

alter table finished_run_progress drop constraint finished_run_progress_stage_check,
    add constraint finished_run_progress_stage_check check (stage in ('filter', 'sample', 'execute', 'score', 'placebo'));
comment on column finished_run_progress.step is 'Order of the stages, 1 to 5.';
comment on column finished_run_progress.stage is 'filter, sample, execute, score or placebo.';

update finished_run_yield set step = step + 1 where stage in ('keep', 'release');
comment on column finished_run_yield.step is 'Order of the stages, 1 to 7.';
comment on column finished_run_yield.stage is 'filter, sample, execute, score, placebo, keep or release.';

-- The stage now writes these two counts itself.
update stage_ledger
set counts = counts || jsonb_build_object(
    'placebos', rows_written,
    'without_placebos', coalesce((counts ->> 'calls')::bigint, 0) - coalesce((counts ->> 'with_placebos')::bigint, 0))
where stage = 'placebo';
