-- What a row was when it was written can be proved where nothing else says it: the parameters of a run, and the url and date of a text.
-- And which recipes and documents an audit cannot judge, since they wait for work.

alter table documents add column record_hash uuid;
comment on column documents.record_hash is 'variant_id_of(document_id, url, document_date) as the row was written; null for a variant, whose id that is, and for rows from before migration 0057.';

alter table annotation_runs add column registered_hash uuid;
comment on column annotation_runs.registered_hash is 'registration_hash of the row as the run was registered. Null for runs from before migration 0057.';

create function registration_hash(run annotation_runs)
    returns uuid
    language sql stable parallel safe
    return rows_hash(cast(row(
        run.run_id, run.corpus_id, run.corpus_uri, run.corpus_version, run.ordinal_limit, run.tools, run.document_limit, run.parameters,
        run.model_identity, run.code_version, run.image, run.schedule, run.chained_release_id, extract(epoch from run.started_at)) as text));
comment on function registration_hash(annotation_runs) is 'Hash of what a run is from its registration on; what is written at its end is not part of it.';

create function is_one_chain(rt run_tools)
    returns boolean
    language sql stable
    return (
        select count(recipe.recipe_id) = count(named.recipe_id) and bool_and(coalesce(recipe.tool = rt.tool, true))
        from (values (1, 'filter', rt.filter_recipe_id, null), (2, 'sample', rt.sampling_recipe_id, rt.filter_recipe_id),
                     (3, 'execute', rt.execution_recipe_id, rt.sampling_recipe_id), (4, 'score', rt.scoring_recipe_id, rt.execution_recipe_id),
                     (5, 'placebo', rt.placebo_recipe_id, rt.scoring_recipe_id)) named (step, stage, recipe_id, parent_recipe_id)
        left join recipes recipe
            on recipe.recipe_id = named.recipe_id and recipe.stage = named.stage
           and recipe.parent_recipe_id is not distinct from named.parent_recipe_id
    );
comment on function is_one_chain(run_tools) is 'Whether the recipes of a tool of a run are there, are of the tool and of their stages, and each is built on the one before.';

create function waits_for_work(rt run_tools, since timestamptz)
    returns boolean
    language sql stable
    return
        -- Documents that were given up: `retry-failed` may have deleted their rows.
        exists (
            select from micro_batches batch
            where batch.recipe_id in (
                      rt.filter_recipe_id, rt.sampling_recipe_id, rt.execution_recipe_id, rt.scoring_recipe_id, rt.placebo_recipe_id)
              and batch.counts ?| array['process_killed', 'out_of_memory']
              and not exists (select from failed_documents failed where failed.recipe_id = batch.recipe_id))
        or exists (
            select from recipes recipe
            where recipe.dropped_at >= since
              and recipe.recipe_id in (
                  rt.filter_recipe_id, rt.sampling_recipe_id, rt.execution_recipe_id, rt.scoring_recipe_id, rt.placebo_recipe_id));
comment on function waits_for_work(run_tools, timestamptz) is 'Whether rows of a tool of a run may be missing rightly since a time: retry-failed or retention deleted them.';

create function weighted_loss(terms real[], line integer, weights double precision[])
    returns double precision
    language sql immutable parallel safe
    return -(weights[1] * terms[line][1] + weights[2] * coalesce(terms[line][2], 0) + weights[3] * coalesce(terms[line][3], 0)
             + weights[4] * coalesce(terms[line][4], 0) + weights[5] * coalesce(terms[line][5], 0));
comment on function weighted_loss(real[], integer, double precision[]) is 'The loss, nats, that a line of call_losses.token_log_probabilities gives with the five weights of its recipe; null without a first term.';
