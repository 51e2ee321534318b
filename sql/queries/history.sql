-- The history: what of finished runs is written as Parquet files on S3.

-- name: unwritten_runs
-- Finished runs that are not in the history as they ended last, the oldest first; or the run that is named.
select run.run_id, run.corpus_id, run.corpus_version,
    coalesce(run.ordinal_limit, 2147483647) as below_ordinal, run.numbers_stored_at,
       made.release_id
from stored_runs stored
join annotation_runs run using (run_id)
left join run_releases made using (run_id)
left join history_runs written using (run_id)
where run_id = cast(:run_id as text)
   or cast(:run_id as text) is null and written.numbers_stored_at is distinct from run.numbers_stored_at
order by run.finished_at, run_id

-- name: recipes_of_run
-- The recipes of a run whose rows the history holds.
select rt.tool, rt.reads_record, named.stage, named.recipe_id, rt.sampling_recipe_id, rt.tool_version,
    recipe.dropped_at
from run_tools rt
cross join stages_of(rt) named
left join recipes recipe on recipe.recipe_id = named.recipe_id
where rt.run_id = :run_id and named.stage in ('sample', 'score', 'placebo') and named.recipe_id is not null
order by rt.tool, named.step

-- name: base
-- The version and ordinal up to which all of a recipe's rows are in the history, as finished_base in
-- runs.sql.
select version, ordinal_limit
from history_work
where recipe_id = :recipe_id and corpus_id = :corpus_id and version <= :at_version
order by least(ordinal_limit, :below_ordinal) desc, version desc
limit 1

-- name: unwritten_documents
-- Those of the documents that have rows of a recipe, none of which are in the history.
select member.variant_id as document_id
from members_to_do(:members) member
join stage_ledger done on done.recipe_id = :recipe_id and done.document_id = member.variant_id
    and done.stage = :stage
where done.rows_written > 0
  -- The ledger of rows that retention dropped stays.
  and partition_of(:table, :recipe_id) is not null
  and not exists (
      select from history_documents written
      where written.recipe_id = :recipe_id and written.document_id = member.variant_id
  )
order by document_id

-- name: candidate_calls
select call.sampling_recipe_id, cast(call.document_id as text) as document_id,
    cast(call.call_id as text) as call_id, call.paragraph,
       call.position_token, call.position_char, call.position_probability, call.call_input, call.call_text,
       cast(call.input_key as text) as input_key, call.effective_input, call.sample_count, call.proposed_by,
       call.input_only_after, call.parent_call,
       substr(document.text, greatest(call.position_char - 120, 0) + 1,
           least(call.position_char, 120)) as text_before,
       substr(document.text, call.position_char + 1, 120) as text_after, document.url, document.document_date
from candidate_calls call
join documents document on document.document_id = call.document_id
where call.sampling_recipe_id = :recipe_id and call.document_id = any(cast(:document_ids as uuid[]))
order by call.document_id, call.call_id

-- name: call_losses
select loss.scoring_recipe_id, cast(loss.document_id as text) as document_id,
    cast(loss.call_id as text) as call_id, loss.result_rank,
       loss.result, loss.reason, loss.loss_without_call, loss.loss_without_result, loss.loss_with_result,
       loss.loss_without_call_full_context, loss.number_format, loss.reduction_bound, loss.loss_reduction,
       loss.probability_without, loss.probability_with, loss.gain_bound,
       result_follows(loss.result, substr(document.text, call.position_char + 1, 120)) as result_follows,
       answer.results as answers, answer.reason as answer_reason, answer.seconds as answer_seconds,
       loss.token_log_probabilities, loss.scored_tokens
from call_losses loss
join candidate_calls call
    on call.sampling_recipe_id = :sampling_recipe_id and call.document_id = loss.document_id
        and call.call_id = loss.call_id
join documents document on document.document_id = loss.document_id
left join call_results answer
    on answer.tool = :tool and answer.tool_version = :tool_version and answer.input_key = call.input_key
where loss.scoring_recipe_id = :recipe_id and loss.document_id = any(cast(:document_ids as uuid[]))
order by loss.document_id, loss.call_id

-- name: placebo_losses
-- With the means of each call.
select placebo.placebo_recipe_id, cast(placebo.document_id as text) as document_id,
    cast(placebo.call_id as text) as call_id,
       placebo.number, placebo.source, placebo.is_sampled, placebo.reason, placebo.loss_with_result,
           placebo.reduction_bound,
       placebo.reduction, placebo.information, placebo.probability_with, placebo.gain,
           means.placebo_reduction as mean_reduction,
       means.information as mean_information, coalesce(means.placebos, 0) as placebos
from placebo_losses placebo
left join call_information means
    on means.placebo_recipe_id = placebo.placebo_recipe_id and means.document_id = placebo.document_id
        and means.call_id = placebo.call_id
where placebo.placebo_recipe_id = :recipe_id and placebo.document_id = any(cast(:document_ids as uuid[]))
order by placebo.document_id, placebo.call_id, placebo.number

-- name: corpus_joined
-- Documents that joined a corpus after one version and up to another, a page of them after the last of the
-- page before.
select corpus_id, cast(document_id as text) as document_id, cast(variant_id as text) as variant_id, ordinal,
    first_version
from corpus_documents
where corpus_id = :owner_id and first_version > :after_version and first_version <= :version
  and (document_id, first_version) > (cast(:after_id as uuid), :after_number)
order by corpus_documents.document_id, first_version
limit :rows

-- name: corpus_left
-- Documents that left a corpus, likewise.
select corpus_id, cast(document_id as text) as document_id, first_version, left_version
from corpus_documents
where corpus_id = :owner_id and left_version > :after_version and left_version <= :version
  and (document_id, first_version) > (cast(:after_id as uuid), :after_number)
order by corpus_documents.document_id, first_version
limit :rows

-- name: release_calls
-- The calls of a release, a page of them.
select release_id, cast(document_id as text) as document_id, cast(call_id as text) as call_id,
    scoring_recipe_id, tool
from release_calls
where release_id = :owner_id and call_id > cast(:after_id as uuid)
order by release_calls.call_id
limit :rows

-- name: release_choices
-- Why a release takes or leaves each kept call, a page of them.
select release_id, cast(document_id as text) as document_id, cast(call_id as text) as call_id, left_out
from release_choices
where release_id = :owner_id and call_id > cast(:after_id as uuid)
order by release_choices.call_id
limit :rows

-- name: rows_of_release
-- How many calls a release has, and how many choices, which grow when another run makes the same release.
select (select count(*) from release_calls where release_id = :release_id) as release_calls,
       (select count(*) from release_choices where release_id = :release_id) as release_choices

-- name: catalog_annotation_runs
select run_id, corpus_id, corpus_uri, corpus_version, ordinal_limit, tools,
    cast(parameters as text) as parameters, model_identity,
       code_version, image, state, started_at, finished_at, schedule, previous_run_id, chained_release_id,
       cast(cost as text) as cost, cast(estimate as text) as estimate
from annotation_runs
join history_runs using (run_id)
order by run_id

-- name: catalog_run_tools
select run_id, tool, filter_recipe_id, sampling_recipe_id, execution_recipe_id, scoring_recipe_id,
    placebo_recipe_id, tool_version,
       keep_threshold, prune_below, reads_record, keep_rule,
           cast(last_document_id as text) as last_document_id
from run_tools
join history_runs using (run_id)
order by run_id, tool

-- name: catalog_recipes
select recipe_id, stage, tool, parent_recipe_id, cast(definition as text) as definition, created_at
from recipes
order by recipe_id

-- name: catalog_run_releases
select made.run_id, made.release_id, made.released_at, release.uri, release.documents, release.calls,
    release.lacking_tools, release.created_at,
       release.withdrawn_at
from run_releases made
join history_runs using (run_id)
join dataset_releases release on release.release_id = made.release_id
order by made.run_id

-- name: catalog_failed_documents
select recipe_id, cast(document_id as text) as document_id, stage, tool, reason
from failed_documents
order by recipe_id, document_id, stage

-- name: catalog_run_overlaps
select distinct run_id, cast(document_id as text) as document_id, is_left_out
from run_overlaps
join history_runs using (run_id)
order by run_id, document_id, is_left_out

-- name: catalog_threshold_counts
select run_id, tool, stored.threshold, stored.threshold = rt.keep_threshold as is_keep_threshold,
    stored.calls, stored.texts,
       stored.releasable_calls, rate.placebos, rate.placebos_scored, rate.false_discovery_rate, rate.rate_low,
           rate.rate_high
from finished_run_thresholds stored
join history_runs using (run_id)
join run_tools rt using (run_id, tool)
left join placebo_rates rate using (run_id, tool, threshold)
order by run_id, tool, threshold

-- name: catalog_yield_by_stage
select run_id, tool, step, stage, reason, is_loss, count, documents
from finished_run_yield
join history_runs using (run_id)
order by run_id, tool, step, stage, reason

-- name: catalog_gain_histogram
select run_id, tool, bucket, bucket / cast(buckets_a_unit(keep_rule) as double precision) as at_least, calls,
    texts, releasable_calls,
       placebos
from finished_run_gains
join history_runs using (run_id)
join run_tools using (run_id, tool)
order by run_id, tool, bucket

-- name: files
-- The files that are registered, by key.
select file_key, table_name, owner_id, state, sha256, size_bytes, rows, version, written_at from history_files
    order by file_key

-- name: mergeable_files
-- Whole files of recipes and corpora, the oldest first, with how many documents (of a corpus: rows) each
-- holds.
select file.file_key, file.table_name, file.owner_id, file.sha256, file.version,
       case when file.version is null
           then (select count(*) from history_documents written where written.file_key = file.file_key)
            else file.rows end as documents
from history_files file
where file.state = 'whole' and file.owner_id <> 'catalog'
order by file.table_name, file.owner_id, file.version, file.written_at, file.file_key

-- name: stale_files
select file_key from history_files where state = 'stale' order by file_key

-- name: add_file
-- Nothing, if there is one of these bytes: two files without rows, such as those of damaged documents, are
-- one.
insert into history_files (file_key, table_name, owner_id, state, sha256, size_bytes, rows, version)
values (:file_key, :table_name, :owner_id, 'writing', :sha256, :size_bytes, :rows, :version)
on conflict (file_key) do nothing

-- name: set_state
update history_files set state = :state where file_key = any(cast(:file_keys as text[]))

-- name: delete_files
delete from history_files where file_key = any(cast(:file_keys as text[]))

-- name: add_documents
insert into history_documents (recipe_id, document_id, file_key)
select :recipe_id, document_id, :file_key from unnest(cast(:document_ids as uuid[])) document_id

-- name: registered_elsewhere
-- Those of the documents whose rows under a recipe another file holds.
select document_id, file_key
from history_documents
where recipe_id = :recipe_id and file_key <> :file_key and document_id = any(cast(:document_ids as uuid[]))
order by document_id

-- name: unknown_documents
-- Those of the documents that Postgres has not, and that were not forgotten.
select document_id
from unnest(cast(:document_ids as uuid[])) document_id
where not exists (select from documents where documents.document_id = document_id.document_id)
  and not exists (select from forgotten_documents
      where forgotten_documents.document_id = document_id.document_id)
order by document_id

-- name: set_registered
-- A file that is registered again counts, but for the texts that were forgotten since: it is written anew
-- without them.
with taken_out as (
    delete from history_documents
    where file_key = :file_key
      and document_id in (select document_id from forgotten_documents)
    returning file_key
)
update history_files set state = case when exists (select from taken_out) then 'stale' else 'whole' end
    where file_key = :file_key

-- name: documents_of_file
select cast(document_id as text) as document_id from history_documents where file_key = :file_key

-- name: forgotten
select cast(document_id as text) as document_id from forgotten_documents

-- name: move_documents
update history_documents set file_key = :new_key where file_key = :old_key

-- name: add_work
-- What the checks found finished is in the history, as every document of it with rows is.
insert into history_work (recipe_id, corpus_id, version, ordinal_limit)
select finished.recipe_id, finished.corpus_id, finished.version, finished.ordinal_limit
from finished_work finished
where finished.recipe_id = :recipe_id and finished.corpus_id = :corpus_id
  and finished.version = :at_version and finished.ordinal_limit = :below_ordinal
on conflict do nothing

-- name: add_run
insert into history_runs (run_id, numbers_stored_at) values (:run_id, :numbers_stored_at)
on conflict (run_id) do update set numbers_stored_at = excluded.numbers_stored_at, written_at = now()

-- name: lose_file
-- A file is not there as it was written: what it held is written again where Postgres has it, and the runs
-- that it belongs to are.
with lost as (
    select table_name, owner_id from history_files where file_key = :file_key
),
documents as (
    delete from history_documents where file_key = :file_key
),
work as (
    delete from history_work using lost where history_work.recipe_id = lost.owner_id
),
runs as (
    delete from history_runs written
    using lost, annotation_runs run
    left join run_releases made using (run_id)
    where run.run_id = written.run_id
      and (lost.owner_id in (run.corpus_id, made.release_id)
           or exists (
               select from run_tools rt
               where rt.run_id = run.run_id
                 and lost.owner_id in (rt.sampling_recipe_id, rt.scoring_recipe_id, rt.placebo_recipe_id)))
)
-- What a corpus gained and lost is in files that follow each other: all of them go.
update history_files file set state = 'leaving'
from lost
where file.file_key = :file_key
   or lost.table_name in ('corpus_joined', 'corpus_left') and file.table_name = lost.table_name
       and file.owner_id = lost.owner_id

-- name: rows_of_recipe
-- How many rows Postgres has of a recipe, in the table of its stage, and of how many documents the history
-- does not know the file. Of the three tables Postgres plans the one that is asked for.
select count(*) as rows,
       count(distinct document_id) filter (
           where not exists (
               select from history_documents written
               where written.recipe_id = :recipe_id and written.document_id = held.document_id)
       ) as unwritten
from (
    select document_id from candidate_calls where :stage = 'sample' and sampling_recipe_id = :recipe_id
    union all
    select document_id from call_losses where :stage = 'score' and scoring_recipe_id = :recipe_id
    union all
    select document_id from placebo_losses where :stage = 'placebo' and placebo_recipe_id = :recipe_id
) held

-- name: runs_dropped
-- Finished runs of which calls, losses or placebos are in the history alone, the newest first, with the time
-- of the last drop. A later run may have made the partition anew, with other documents.
select run.run_id, max(recipe.dropped_at) as dropped_at
from history_runs written
join annotation_runs run using (run_id)
join run_tools rt using (run_id)
cross join stages_of(rt) stage
join recipes recipe using (recipe_id)
where recipe.dropped_at >= run.finished_at
  and stage.stage in ('sample', 'score', 'placebo')
  and (partition_of(cast(:table_of_stage as jsonb) ->> stage.stage, stage.recipe_id) is null
       or exists (
           select
           from history_documents only_copy
           where only_copy.recipe_id = recipe.recipe_id
             and not exists (
                 select from stage_ledger done
                 where done.recipe_id = only_copy.recipe_id and done.document_id = only_copy.document_id)))
group by run.run_id, run.finished_at
order by run.finished_at desc, run.run_id

-- name: documents_nowhere_else
-- Of how many documents of a file Postgres has no rows in the table that the file is of.
select count(*) as documents
from history_documents written
where written.file_key = :file_key
  and not exists (
      select from candidate_calls call
      where :table = 'candidate_calls' and call.sampling_recipe_id = :recipe_id
          and call.document_id = written.document_id)
  and not exists (
      select from call_losses loss
      where :table = 'call_losses' and loss.scoring_recipe_id = :recipe_id
          and loss.document_id = written.document_id)
  and not exists (
      select from placebo_losses placebo
      where :table = 'placebo_losses' and placebo.placebo_recipe_id = :recipe_id
          and placebo.document_id = written.document_id)
