-- Runs, their recipes and micro-batches.

-- name: a_running_run_gives_signs_of_life
-- fail: a sign of life within 72 hours of a run that is running
-- run: orphaned annotation_runs
-- remedy: See in Airflow that nothing works at it; then `toolformer-ops stage finish-run --state failed` (--repair does that unless its numbers are stored).
select run_id as place, format('the last at %s', date_trunc('second', last_sign)) as found,
       -- One whose numbers are stored has ended: how, a person says.
       case when numbers_stored_at is null
           then jsonb_build_object('action', 'finish_run', 'run_id', run_id) end as repair
from (
    select run.run_id, run.numbers_stored_at,
           greatest(
               run.started_at,
               (select max(committed_at) from micro_batches done where done.run_id = run.run_id),
               (select max(checked_at) from quality_results result where result.run_id = run.run_id),
               (select max(released_at) from run_releases made where made.run_id = run.run_id),
               (select max(published_at) from run_models made where made.run_id = run.run_id),
               (select max(evaluated_at) from evaluation_scores score where score.run_id = run.run_id)
           ) as last_sign
    from annotation_runs run
    where run.state = 'running' and run.run_id = any(cast(:run_ids as text[]))
) run
-- A finetuning may take 48 hours.
where last_sign < now() - interval '72 hours'

-- name: checks_are_known
-- fail: results of the checks that this version knows, all of a subject of one moment
-- run: doubled quality_results
-- remedy: Run the check again: `toolformer-ops stage check` (or check-release). Restore or delete the row that it does not write.
select format('%s of %s in %s', result.check_name, result.subject, result.run_id) as place,
       format('one of %s, with %s others of this subject', result.checked_at, result.of_subject - 1) as found
from (
    select result.*, run.tools,
           count(*) over (partition by run_id, subject) as of_subject,
           count(*) over (partition by run_id, subject, checked_at) as of_moment
    from quality_results result
    join annotation_runs run using (run_id)
    where run_id = any(cast(:run_ids as text[]))
) result
where case when result.subject = 'release' then result.check_name <> all(cast(:release_checks as text[]))
           when result.subject = any(result.tools) then result.check_name <> all(cast(:tool_checks as text[]))
           else true end
   or result.of_moment * 2 <= result.of_subject
   or result.of_subject = 1

-- name: documents_given_up_are_named
-- fail: a row in failed_documents for a document that the ledger counts as given up
-- run: lost failed_documents
-- remedy: Restore the row from a backup: `toolformer-ops retry-failed` finds the document by it.
select format('%s of %s under %s', done.stage, done.document_id, done.recipe_id) as place,
       format('%s in the ledger, and no row', done.counts) as found
from micro_batches batch
join stage_ledger done on done.recipe_id = batch.recipe_id and done.stage = batch.stage
    and done.batch_id = batch.batch_id
where batch.recipe_id = any(cast(:recipe_ids as text[]))
  and done.recipe_id = any(cast(:recipe_ids as text[]))  -- reads no other partition
  -- Answers are shared, so that a later stage counts the reason of documents that were not given up, too.
  and batch.stage in ('filter', 'sample')
  and batch.counts ?| array['process_killed', 'out_of_memory']
  and done.counts ?| array['process_killed', 'out_of_memory']
  and not exists (
      select from failed_documents failed
      where failed.recipe_id = done.recipe_id and failed.document_id = done.document_id
          and failed.stage = done.stage)

-- name: failed_documents_are_in_the_ledger
-- fail: a document that its run gave up in this stage for this reason, as the ledger counts it
-- run: changed failed_documents
-- remedy: Restore the row from a backup, or delete it: the ledger says that the document was done.
select format('%s of %s under %s', failed.stage, failed.document_id, failed.recipe_id) as place,
       format('%s by run %s, and %s by run %s in the ledger', failed.reason, failed.run_id,
           coalesce(cast(done.counts as text), 'nothing'),
              coalesce(batch.run_id, 'none')) as found
from failed_documents failed
left join stage_ledger done
    on done.recipe_id = failed.recipe_id and done.document_id = failed.document_id
        and done.stage = failed.stage
   and done.recipe_id = any(cast(:recipe_ids as text[]))  -- reads no other partition
left join micro_batches batch on batch.batch_id = done.batch_id
where failed.recipe_id = any(cast(:recipe_ids as text[]))
  and (done.document_id is null
       or failed.reason not in ('process_killed', 'out_of_memory')
       or batch.run_id <> failed.run_id
       or batch.tool <> failed.tool
       or failed.stage in ('filter', 'sample') and not done.counts ? failed.reason
       -- All inputs may have been answered before, and a text may hold no call: then the reason is counted
       -- nowhere.
       or failed.stage = 'score' and done.counts ? 'scored')

-- name: finished_runs_have_ended
-- fail: the end of a run whose numbers are stored
-- run: changed annotation_runs
-- remedy: Set it again, as Airflow shows it: `toolformer-ops stage finish-run --run RUN --state success` (or failed).
select run_id as place, format('state %s, ended %s', state,
    coalesce(cast(finished_at as text), 'never')) as found
from annotation_runs
where run_id = any(cast(:run_ids as text[]))
  and (state = 'running' and numbers_stored_at is not null or (state = 'running') <> (finished_at is null))

-- name: ends_are_those_of_their_own_run
-- fail: the state, end and problem of a run as the DAG run that opened it left them
-- run: changed annotation_runs
-- remedy: Set it again, as Airflow shows the DAG run of dag_id and dag_run_after: `toolformer-ops stage finish-run --run RUN --state success` (or failed).
select run.run_id as place,
       format('state %s, ended %s%s: not as %s left it', run.state,
           coalesce(cast(run.finished_at as text), 'never'),
              coalesce(', ' || run.problem, ''),
                  coalesce(nullif(run.dag_id, ''), 'the command line')) as found
from annotation_runs run
where run.run_id = any(cast(:run_ids as text[]))
  -- One whose numbers are stored and that is running is found above.
  and case when run.state = 'running' then run.ended_hash is not null and run.numbers_stored_at is null
           when run.ended_hash is null then run.dag_id is not null
           else run.ended_hash <> ending_hash(run) end

-- name: micro_batches_are_sums_of_the_ledger
-- fail: ledger rows that sum up to their micro-batch
-- run: changed stage_ledger
-- remedy: One of the two was changed. Restore it from a backup, or compare counts with the documents' rows by `--sample`.
with done as (
    select batch_id, count(*) as documents, sum(rows_written) as rows_written
    from stage_ledger
    where batch_id is not null and recipe_id = any(cast(:recipe_ids as text[]))
    group by batch_id
),
summed as (
    select batch_id, jsonb_object_agg(name, count order by name) as counts
    from (
        select ledger.batch_id, counted.key as name, sum(cast(counted.value as bigint)) as count
        from stage_ledger ledger
        cross join jsonb_each_text(ledger.counts) counted
        where ledger.batch_id is not null and ledger.recipe_id = any(cast(:recipe_ids as text[]))
        group by ledger.batch_id, counted.key
        having sum(cast(counted.value as bigint)) <> 0
    ) by_name
    group by batch_id
)
select format('batch %s', batch.batch_id) as place,
       format('%s documents, %s rows and %s in the ledger, and %s, %s and %s in micro_batches',
           done.documents, done.rows_written,
              coalesce(summed.counts, '{}'), batch.documents, batch.rows_written, batch.counts) as found
from micro_batches batch
join done using (batch_id)
left join summed using (batch_id)
-- Ledger rows of documents that were forgotten, or are to be done again, are gone.
where done.documents > batch.documents
   or done.documents = batch.documents
      and (done.rows_written <> batch.rows_written
           or coalesce(summed.counts, '{}') <> (
               select coalesce(jsonb_object_agg(key, value), '{}') from jsonb_each(batch.counts)
                   where value <> '0'))

-- name: micro_batches_are_there
-- fail: the micro-batch in which documents were finished
-- run: lost micro_batches
-- remedy: Restore the row from a backup: it says which run did the work.
select format('batch %s', done.batch_id) as place,
    format('no row for %s ledger rows of %s', done.documents, done.recipe_id) as found
from (
    select batch_id, min(recipe_id) as recipe_id, count(*) as documents
    from stage_ledger
    where batch_id is not null and recipe_id = any(cast(:recipe_ids as text[]))
    group by batch_id
) done
where not exists (select from micro_batches batch where batch.batch_id = done.batch_id)

-- name: recipes_of_runs_are_there
-- fail: the recipes that runs name
-- run: lost recipes
-- remedy: Start a run with the same choices, which writes it again, or restore the row from a backup.
select used.recipe_id as place, format('no row of %s of %s', used.stage, used.tool) as found
from (
    select distinct rt.tool, named.stage, named.recipe_id
    from run_tools rt
    cross join stages_of(rt) named
    where rt.run_id = any(cast(:run_ids as text[])) and named.recipe_id is not null
) used
where not exists (select from recipes known where known.recipe_id = used.recipe_id)

-- name: runs_are_as_registered
-- fail: the parameters, corpus, version and start of a run as it was registered under its name
-- run: changed annotation_runs
-- remedy: Restore the row from a backup. A copy of a run under another name is deleted with what refers to it.
select run.run_id as place, 'a row with another hash' as found
from annotation_runs run
where run.run_id = any(cast(:run_ids as text[])) and run.registered_hash <> registration_hash(run)

-- name: tools_of_runs_are_as_chosen
-- fail: thresholds, bounds and recipes of a tool of a run as it was registered, by the run's parameters
-- run: changed run_tools
-- remedy: Restore the row from a backup. Do not accept numbers that are counted by it.
select format('%s of %s', rt.tool, rt.run_id) as place,
       string_agg(format('%s %s where %s has %s', compared.name, coalesce(compared.stored, 'none'),
           compared.source,
                         coalesce(compared.chosen, 'none')), ', '
                             order by compared.name, compared.source) as found
from run_tools rt
join annotation_runs run using (run_id)
left join recipes scoring on scoring.recipe_id = rt.scoring_recipe_id
left join recipes execution on execution.recipe_id = rt.execution_recipe_id
left join lateral (
    select part.value ->> 'keep_threshold' as keep_threshold
    from run_releases made
    join dataset_releases release using (release_id)
    cross join jsonb_array_elements(release.definition -> 'tools') part
    where made.run_id = rt.run_id and part.value ->> 'tool' = rt.tool
) released on rt.registered_hash is null
cross join lateral (
    -- Parameters that were changed are found as that.
    select run.registered_hash = registration_hash(run) as are_parameters_proved,
        run.parameters -> 'keep_thresholds' as thresholds
) chosen
cross join lateral (values
    ('hash', 'the registration', cast(rt.registered_hash as text), cast(tool_registration_hash(rt) as text),
        rt.registered_hash is not null),
    ('prune_below', 'the run', cast(cast(run.parameters ->> 'prune_below' as double precision) as text),
        cast(rt.prune_below as text),
     chosen.are_parameters_proved and run.parameters ? 'prune_below'),
    ('prune_below', 'the scoring recipe',
        cast(cast(scoring.definition ->> 'prune_below' as double precision) as text),
     cast(rt.prune_below as text), scoring.definition ? 'prune_below'),
    ('keep_rule', 'the run', run.parameters ->> 'keep_rule', rt.keep_rule, chosen.are_parameters_proved
        and run.parameters ? 'keep_rule'),
    ('keep_rule', 'the scoring recipe', coalesce(scoring.definition ->> 'keep_rule', 'paper'), rt.keep_rule,
        scoring.recipe_id is not null),
    ('keep_threshold', 'the run', cast(cast(chosen.thresholds ->> rt.tool as double precision) as text),
     cast(rt.keep_threshold as text), chosen.are_parameters_proved and chosen.thresholds ? rt.tool),
    ('keep_threshold', 'its release', cast(cast(released.keep_threshold as double precision) as text),
        cast(rt.keep_threshold as text),
     released.keep_threshold is not null),
    ('tool_version', 'the execution recipe', execution.definition ->> 'tool_version', rt.tool_version,
     execution.definition ? 'tool_version' and execution.tool = rt.tool)
) as compared (name, source, chosen, stored, is_known)
where rt.run_id = any(cast(:run_ids as text[]))
  and compared.is_known and compared.chosen is distinct from compared.stored
group by rt.run_id, rt.tool

-- name: tools_of_runs_name_one_chain
-- fail: recipes of a tool of a run that are there, of this tool, each built on the one before
-- run: changed run_tools
-- remedy: Restore the row from a backup; the tool's rows of this run are not looked at, and not repaired, before.
select format('%s of %s', rt.tool, rt.run_id) as place,
       (select string_agg(recipe_id, ' -> ' order by step) from stages_of(rt)) as found
from run_tools rt
where rt.run_id = any(cast(:run_ids as text[]))
  and not is_one_chain(rt)
  -- A recipe that is lost is found as that, unless others were built on it: then another one is named here.
  and exists (
      select from recipes recipe
      where recipe.recipe_id in (select recipe_id from stages_of(rt) where step > 1)
        and (recipe.tool <> rt.tool
             or recipe.parent_recipe_id not in (select recipe_id from stages_of(rt) where step < 5)
             or (recipe.stage, recipe.recipe_id) not in (select stage, recipe_id from stages_of(rt)
                 where recipe_id is not null)))

-- name: versions_of_bundles_are_hashes_of_their_files
-- fail: files of a DAG bundle whose hash is its version
-- all: changed bundle_versions
-- remedy: Delete the rows of this version: Airflow's DAG processor stores the files of the newest version again. Runs of this version are cleared with the newest.
select bundle.version as place, format('the hash %s', bundle.hash) as found
from (
    select version,
           substr(encode(sha256(string_agg(sha256(convert_to(name, 'UTF8')) || sha256(content), ''::bytea
               order by name collate "C")), 'hex'), 1, 16)
               as hash
    from bundle_versions
    group by version
) bundle
where bundle.hash <> bundle.version
