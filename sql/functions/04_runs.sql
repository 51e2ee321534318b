-- Questions about a run.

create or replace function named_run(run text)
    returns text
    language sql stable parallel safe
    return coalesce(nullif(run, ''), current_setting('toolformer.run', true), '');
comment on function named_run is
    'The run of this name; for an empty name the one that the session names (set toolformer.run), or '
    'nothing.';

create or replace function run_or_newest(run text)
    returns text
    -- a materialized view is made without one
    language plpgsql stable parallel safe set search_path from current
as $$
declare
    found text;
begin
    run := named_run(run);
    if run = '' then
        return (
            select run_id
            from annotation_runs
            where state = 'success' and finished_at is not null
                and exists (select from run_tools where run_tools.run_id = annotation_runs.run_id)
            order by finished_at desc, run_id
            limit 1
        );
    end if;
    select run_id into found from annotation_runs where run_id = run;
    if found is null then
        raise exception 'run %: expected a run that was started, found none', run
            using hint = 'The table annotation_runs lists the runs.';
    end if;
    return found;
end
$$;
comment on function run_or_newest is
    'The run of this id; for an empty id the one that the session names (set toolformer.run), else the '
    'newest one that ended well, null if none has: a run that failed is named by its id. Refuses an id that '
    'no run has.';

create or replace function has_placebos(parameters jsonb, placebo_recipe_id text)
    returns boolean
    language sql immutable parallel safe
    return placebo_recipe_id is not null
        or coalesce((parameters ->> 'placebos')::bigint, 0) > 0
        or coalesce((parameters ->> 'placebo_sample')::bigint, 0) > 0;
comment on function has_placebos is
    'Whether a tool of a run has the stage placebo: the run''s parameters ask for placebos, or they were '
    'scored for it later (run_tools.placebo_recipe_id).';

-- Postgres inlines it.
create or replace function stages_of(rt run_tools)
    returns table (step integer, stage text, recipe_id text, parent_recipe_id text)
    language sql immutable parallel safe
as $$
    values (1, 'filter', rt.filter_recipe_id, null),
        (2, 'sample', rt.sampling_recipe_id, rt.filter_recipe_id),
           (3, 'execute', rt.execution_recipe_id, rt.sampling_recipe_id),
               (4, 'score', rt.scoring_recipe_id, rt.execution_recipe_id),
           (5, 'placebo', rt.placebo_recipe_id, rt.scoring_recipe_id)
$$;
comment on function stages_of is
    'The stages of a tool of a run, each with its recipe and that which it is built on. The recipe of '
    'placebos is null before there is one.';

create or replace function work_of_stages(rt run_tools)
    returns table (step integer, stage text, documents bigint, seconds double precision)
    -- only the partitions of these recipes are read
    language plpgsql stable parallel safe set plan_cache_mode = force_custom_plan
as $$
#variable_conflict use_column
begin
    return query
        select named.step, named.stage, count(*), sum(cast(done.seconds as double precision))
        from stage_ledger done
        join stages_of(rt) named on named.stage = done.stage
        join run_tool_documents member
            on member.run_id = rt.run_id and member.tool = rt.tool and member.variant_id = done.document_id
        where done.recipe_id in (rt.filter_recipe_id, rt.sampling_recipe_id, rt.execution_recipe_id,
            rt.scoring_recipe_id, rt.placebo_recipe_id)
        group by named.step, named.stage;
end
$$;
comment on function work_of_stages is
    'The documents of a tool of a run that each stage has finished, whichever run did the work, and the '
    'seconds that they took.';

create or replace function tokens_kept(recipe text, documents uuid[])
    returns bigint
    -- only the partition of this recipe is read
    language plpgsql stable set plan_cache_mode = force_custom_plan
as $$
begin
    return (
        select coalesce(sum(kept.tokens), 0)
        from (
            select about_tokens(sum(decision.end_char - decision.start_char)) as tokens
            from filter_decisions decision
            where decision.filter_recipe_id = recipe and decision.document_id = any(documents)
                and decision.kept
            group by decision.document_id
        ) kept
    );
end
$$;
comment on function tokens_kept is 'About how many tokens a filter kept of these documents.';

create or replace function is_one_chain(rt run_tools)
    returns boolean
    language sql stable
    return (
        select count(recipe.recipe_id) = count(named.recipe_id)
            and bool_and(coalesce(recipe.tool = rt.tool, true))
        from stages_of(rt) named
        left join recipes recipe
            on recipe.recipe_id = named.recipe_id and recipe.stage = named.stage
           and recipe.parent_recipe_id is not distinct from named.parent_recipe_id
    );
comment on function is_one_chain is
    'Whether the recipes of a tool of a run are there, are of the tool and of their stages, and each is '
    'built on the one before.';

create or replace function waits_for_work(rt run_tools, since timestamptz)
    returns boolean
    language sql stable
    return
        -- Documents that were given up: `retry-failed` may have deleted their rows.
        exists (
            select from stages_of(rt)
            join micro_batches batch using (recipe_id)
            where batch.counts ?| array['process_killed', 'out_of_memory']
              and not exists (select from failed_documents failed where failed.recipe_id = batch.recipe_id))
        or exists (select from stages_of(rt) join recipes recipe using (recipe_id)
            where recipe.dropped_at >= since);
comment on function waits_for_work is
    'Whether rows of a tool of a run may be missing rightly since a time: retry-failed or retention deleted '
    'them.';
