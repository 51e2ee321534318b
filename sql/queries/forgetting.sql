-- Texts, publications and rejections that are taken out of the database, with all that was made of them.

-- name: withdraw_model
update finetuned_models set withdrawn_at = coalesce(withdrawn_at, now()) where model_id = :publication_id

-- name: withdraw_release
update dataset_releases set withdrawn_at = coalesce(withdrawn_at, now()) where release_id = :publication_id

-- name: count
-- How many rows forgetting.delete and forgetting.results would delete or change, by table.
with calls as materialized (
    select call.sampling_recipe_id, call.call_id, call.input_key
    from candidate_calls call
    join texts_to_forget text on text.document_id = call.document_id
),
inputs as (
    select distinct asked.tool, calls.input_key
    from calls
    join run_tools asked on asked.sampling_recipe_id = calls.sampling_recipe_id
    where calls.input_key is not null
),
asked_elsewhere as (
    select distinct asked.tool, call.input_key
    from candidate_calls call
    join run_tools asked on asked.sampling_recipe_id = call.sampling_recipe_id
    join inputs on inputs.tool = asked.tool and inputs.input_key = call.input_key
    where call.document_id not in (select document_id from texts_to_forget)
)
(select counted.table_name, counted.rows
 from rows_of_texts(array(select document_id from texts_to_forget),
     false) with ordinality counted (table_name, rows, place)
 order by counted.place desc)
union all
select 'quality_results', count(*)
from quality_results result
where not result.success
  and exists (
      select from ids_named_by(result) named (id)
      where named.id in (select document_id from texts_to_forget) or named.id in (select call_id from calls))
union all
select 'call_results', count(*)
from call_results result
join inputs on inputs.tool = result.tool and inputs.input_key = result.input_key
where not exists (
    select from asked_elsewhere other where other.tool = result.tool and other.input_key = result.input_key
)

-- name: count_rest_of_corpus
-- What a forgotten corpus loses in addition to the rows of its texts.
select 'corpus_documents' as table_name, count(*) as rows
from corpus_documents
where corpus_id = :corpus_id and document_id not in (select document_id from texts_to_forget)
union all
select 'corpus_spare_records', count(*)
from corpus_spare_records
where corpus_id = :corpus_id and document_id not in (select document_id from texts_to_forget)
union all
select 'rejected_documents', count(*)
from rejected_documents
where corpus_id = :corpus_id and detail is not null

-- name: runs_of_texts
-- Runs over this corpus, or that use one of the texts: in their corpus at their version, their placebos' pool
-- or their release. Of these the run of this id, or without one all that are unfinished.
select run.run_id
from annotation_runs run
where case when :run_id = '' then run.state = 'running' else run.run_id = :run_id end
  and (run.corpus_id = :corpus_id
       or exists (
           select
           from texts_to_forget text
           join run_documents member on member.run_id = run.run_id and member.document_id = text.document_id
       )
       or exists (
           select
           from run_tools tool
           join placebo_pool_results pooled on pooled.placebo_recipe_id = tool.placebo_recipe_id
           join texts_to_forget text on text.document_id = pooled.document_id
           where tool.run_id = run.run_id
       )
       or exists (
           select
           from texts_to_forget text
           join release_calls call on call.document_id = text.document_id
           where call.release_id = run.chained_release_id
              or call.release_id = (select used.release_id from run_releases used
                  where used.run_id = run.run_id)
       ))
order by run.run_id

-- name: of_release
-- How many texts of a release were forgotten.
select count(distinct document_id) as texts
from release_calls
join forgotten_documents using (document_id)
where release_id = :release_id

-- name: mark
-- From now on no ingestion takes these texts. One that was forgotten before is deleted again: a stage may
-- have written of it meanwhile.
insert into forgotten_documents (document_id, reason)
select distinct text_id, cast(:reason as text) from texts_to_forget
on conflict (document_id) do update set removed_at = null

-- name: rejections_of_corpus
-- What was found in the refused records of a forgotten corpus.
update rejected_documents set detail = null where corpus_id = :corpus_id and detail is not null

-- name: texts_table
-- The texts at hand: their documents and the variants of these, each with the document that names the text.
create temporary table texts_to_forget (
    document_id uuid primary key,
    text_id     uuid not null
) on commit drop

-- name: interrupted_texts
-- Take the next texts whose rows are still to be deleted; another process works on those that are locked.
insert into texts_to_forget (document_id, text_id)
select document_id, document_id
from (
    select document_id
    from forgotten_documents
    where removed_at is null
    order by forgotten_at, document_id
    limit :texts
    for update skip locked
) pending

-- name: any_pending
-- A row if a text is being forgotten, whose rows are still to be deleted.
select 1 from forgotten_documents where removed_at is null limit 1

-- name: take_pending
-- Take all texts whose rows are still to be deleted.
insert into texts_to_forget (document_id, text_id)
select document_id, document_id from forgotten_documents where removed_at is null

-- name: add_variants
-- With a text all of its variants, and with a variant its text; and this text with the calls of a release,
-- over which a run with chains went.
insert into texts_to_forget (document_id, text_id)
select document_id, document_id
from chained_texts
where source_document_id in (select text_id from texts_to_forget)
on conflict do nothing;
insert into texts_to_forget (document_id, text_id)
select document_id, coalesce(variant_of, document_id)
from documents
where document_id in (select text_id from texts_to_forget)
   or variant_of in (select text_id from texts_to_forget)
on conflict do nothing;
analyze texts_to_forget

-- name: rejection
update rejected_documents set detail = null where corpus_id = :corpus_id and file_uri = :file_uri
    and line = :line

-- name: bases
-- The tools of runs whose numbers of a kind a later run may follow from, with the texts at hand, where these
-- are in the corpus: of each recipe, keep rule and document limit the newest run. `rt` and `run` are rows as
-- text, so that Postgres plans for just these documents. None over a corpus that is forgotten as a whole
-- (forgotten_corpus_id).
create temporary table bases on commit drop as
with of_texts as materialized (
    select distinct member.corpus_id from corpus_documents member join texts_to_forget text
        using (document_id)
)
select distinct on (
           kinds.kind, run.corpus_id, run.ordinal_limit, rt.tool, rt.scoring_recipe_id, rt.placebo_recipe_id,
               rt.keep_threshold, rt.prune_below,
           rt.keep_rule, rt.reads_record)
       kinds.kind, run.run_id, rt.tool, cast(rt as text) as rt, cast(run as text) as run,
           thresholds_of(rt) as thresholds, rt.placebo_recipe_id
from annotation_runs run
join run_tools rt using (run_id)
cross join (values ('finished_run'), ('placebo_counts'), ('checked_yields')) kinds (kind)
where run.corpus_id in (select corpus_id from of_texts) and run.corpus_id <> :forgotten_corpus_id
  and rt.last_document_id is null
  and case kinds.kind
      when 'finished_run' then
          exists (select from stored_runs stored where stored.run_id = run.run_id)
          and not exists (
              select from finished_run_progress progress
              where progress.run_id = run.run_id and progress.tool = rt.tool
                  and progress.done <> progress.total)
      when 'placebo_counts' then exists (
          select from placebo_counts counted where counted.run_id = run.run_id and counted.tool = rt.tool)
      else exists (select from checked_yields counted where counted.run_id = run.run_id
          and counted.tool = rt.tool) end
order by kinds.kind, run.corpus_id, run.ordinal_limit, rt.tool, rt.scoring_recipe_id, rt.placebo_recipe_id,
    rt.keep_threshold, rt.prune_below,
         rt.keep_rule, rt.reads_record, run.corpus_version desc, run.started_at desc;
select bases.*, array(select document_id from texts_to_forget) as document_ids,
    array(select distinct text_id from texts_to_forget) as text_ids
from bases
order by kind, run_id, tool

-- name: subtract_finished_run
-- What the texts have of the numbers of a run, for later runs.
insert into forgotten_numbers (run_id, tool, kind, document_ids, numbers)
select :run_id, :tool, 'finished_run', cast(:text_ids as uuid[]), jsonb_build_object(
    'thresholds', (
        select coalesce(jsonb_agg(to_jsonb(counted)), '[]')
        from counted_thresholds(cast(:rt as run_tools), cast(:run as annotation_runs), null,
            cast(:document_ids as uuid[])) counted),
    'reductions', (
        select coalesce(jsonb_agg(to_jsonb(counted)), '[]')
        from counted_histogram(cast(:rt as run_tools), cast(:run as annotation_runs), null,
            cast(:document_ids as uuid[])) counted),
    'progress', (
        select coalesce(jsonb_agg(jsonb_build_object('stage', stage, 'done', done, 'total', total)), '[]')
        from counted_progress(cast(:rt as run_tools), cast(:run as annotation_runs), null,
            cast(:document_ids as uuid[]))),
    'yield', (
        select coalesce(jsonb_agg(to_jsonb(counted)), '[]')
        from counted_yield(cast(:rt as run_tools), cast(:run as annotation_runs), null,
            cast(:document_ids as uuid[])) counted))

-- name: subtract_placebo_counts
-- The texts are taken out of what the false-discovery rate is counted from; the rate of the run itself does
-- not change.
with gone as (
    select threshold, placebos, calls, count(*) as documents
    from counted_by_document(
        cast(:rt as run_tools), cast(:run as annotation_runs), null,
            cast((cast(:thresholds as double precision[]))[1] as double precision),
        cast(:thresholds as double precision[]), true, cast(:document_ids as uuid[]))
    group by threshold, placebos, calls
)
update placebo_counts held
set documents = held.documents - gone.documents
from gone
where held.run_id = :run_id and held.tool = :tool
  and held.threshold = gone.threshold and held.placebos = gone.placebos and held.calls = gone.calls;
delete from placebo_counts where run_id = :run_id and tool = :tool and documents = 0;
insert into forgotten_numbers (run_id, tool, kind, document_ids, numbers)
select :run_id, :tool, 'placebo_counts', cast(:text_ids as uuid[]), jsonb_build_object(
    'sampled', coalesce(sum(counted.sign), 0),
    'scored', coalesce(sum(counted.sign) filter (
        where placebo.source is not null and (placebo.reason is null or placebo.reason = 'pruned_below')), 0))
from counted_documents(cast(:rt as run_tools), cast(:run as annotation_runs), null,
    cast(:document_ids as uuid[])) counted
join placebo_losses placebo on placebo.document_id = counted.document_id
where placebo.placebo_recipe_id = :placebo_recipe_id and placebo.is_sampled

-- name: subtract_checked_yields
-- The texts are taken out of what a check counted.
update checked_yields held
set judged_calls = held.judged_calls + gone.judged_calls,
    kept_calls = held.kept_calls + gone.kept_calls,
    releasable_calls = held.releasable_calls + gone.releasable_calls,
    kept_texts = held.kept_texts + gone.kept_texts
from (
    select coalesce(sum(calls), 0) as judged_calls,
        coalesce(sum(calls) filter (where outcome = 'kept'), 0) as kept_calls,
           coalesce(sum(releasable) filter (where outcome = 'kept'), 0) as releasable_calls,
           coalesce(sum(texts) filter (where outcome = 'kept'), 0) as kept_texts
    from counted_outcomes(cast(:rt as run_tools), cast(:run as annotation_runs), null,
        cast(:document_ids as uuid[]))
) gone
where held.run_id = :run_id and held.tool = :tool

-- name: release_texts
-- Take the texts at hand out of what refers to them, before their rows are deleted; returns the checks
-- that named them. The inputs that their calls asked for are kept in forgotten_inputs until
-- forgetting.results has looked who else asks for them.
with calls as (
    select call.sampling_recipe_id, call.call_id, call.input_key
    from candidate_calls call
    join texts_to_forget text on text.document_id = call.document_id
),
inputs as (
    insert into forgotten_inputs (tool, input_key)
    select distinct asked.tool, calls.input_key
    from calls
    join run_tools asked on asked.sampling_recipe_id = calls.sampling_recipe_id
    where calls.input_key is not null
    on conflict do nothing
),
chained as (
    delete from chained_texts row using texts_to_forget text where row.document_id = text.document_id
),
shared as (
    delete from run_overlaps row using texts_to_forget text where row.document_id = text.document_id
),
failed as (
    delete from failed_documents row using texts_to_forget text where row.document_id = text.document_id
),
judged as (
    delete from judgements row
    where row.document_id in (select document_id from texts_to_forget)
        or row.source_call_id in (select call_id from calls)
),
tries as (
    delete from micro_batch_tries row using texts_to_forget text
        where text.document_id = any (row.document_ids)
),
claims as (
    delete from document_claims row using texts_to_forget text where text.document_id = row.document_id
),
-- The files of the history that hold them are written anew without them, at the end.
written as (
    delete from history_documents row using texts_to_forget text where text.document_id = row.document_id
        returning row.file_key
),
history as (
    update history_files
    set state = 'stale'
    where state = 'whole'
      and (file_key in (select file_key from written)
           or table_name in ('corpus_joined', 'corpus_left') and owner_id in (
               select row.corpus_id from corpus_documents row join texts_to_forget text using (document_id)))
),
-- Their files are read again by the next ingestion, which refuses the texts and counts them as removed.
files as (
    update corpus_files file set read_as = -1
    from (
        select row.corpus_id, row.file_uri from corpus_documents row join texts_to_forget text
            using (document_id)
        where row.left_version is null
        union
        select row.corpus_id, row.file_uri from corpus_spare_records row join texts_to_forget text
            using (document_id)
    ) held
    where file.corpus_id = held.corpus_id and file.file_uri = held.file_uri
),
-- What a check counted over the corpora that held the texts, but for the newest runs, from which the texts
-- were subtracted.
counted_yields as (
    delete from checked_yields counted
    using annotation_runs run, corpus_documents member, texts_to_forget text
    where counted.run_id = run.run_id and run.corpus_id = member.corpus_id
        and member.document_id = text.document_id
      and (counted.run_id, counted.tool) not in (select run_id, tool from bases where kind = 'checked_yields')
),
counted_placebos as (
    delete from placebo_counts counted
    using annotation_runs run, corpus_documents member, texts_to_forget text
    where counted.run_id = run.run_id and run.corpus_id = member.corpus_id
        and member.document_id = text.document_id
      and (counted.run_id, counted.tool) not in (select run_id, tool from bases where kind = 'placebo_counts')
),
quality as (
    update quality_results result
    set observed = result.observed || '{"examples": []}',
        message = format('%s does not hold; the rows that were named here held a text that is forgotten',
            result.check_name)
    where not result.success
      and exists (
          select from ids_named_by(result) named (id)
          where named.id in (select document_id from texts_to_forget)
              or named.id in (select call_id from calls))
    returning 1
)
select 'quality_results' as table_name, count(*) as rows from quality

-- name: delete
-- Delete the texts at hand and every row derived from them. Placebos of other texts keep their losses, and
-- lose what the result was.
select deleted.table_name, deleted.rows
from rows_of_texts(array(select document_id from texts_to_forget), true) with ordinality deleted (table_name,
    rows, place)
order by deleted.place desc

-- name: mark_removed
update forgotten_documents set removed_at = clock_timestamp()
where document_id in (select text_id from texts_to_forget)

-- name: results
-- Delete the results that only forgotten calls asked for. One scan of candidate_calls: there is no index on
-- the inputs.
with asked_elsewhere as (
    select distinct asked.tool, call.input_key
    from candidate_calls call
    join run_tools asked on asked.sampling_recipe_id = call.sampling_recipe_id
    join forgotten_inputs input on input.tool = asked.tool and input.input_key = call.input_key
),
results as (
    delete from call_results result using forgotten_inputs input
    where input.tool = result.tool
      and input.input_key = result.input_key
      and not exists (
          select from asked_elsewhere other where other.tool = result.tool
              and other.input_key = result.input_key
      )
    returning 1
),
inputs as (
    delete from forgotten_inputs
)
select 'call_results' as table_name, count(*) as rows from results

-- name: memberships
-- A forgotten corpus holds nothing any more, not even the texts that other corpora hold too. If it is
-- ingested again, its files are read again, and its next run counts all documents.
with files as (
    update corpus_files set read_as = -1 where corpus_id = :corpus_id
),
corpus as (
    update corpora set memberships_deleted_at = now() where corpus_id = :corpus_id
),
counted_yields as (
    delete from checked_yields counted using annotation_runs run where counted.run_id = run.run_id
        and run.corpus_id = :corpus_id
),
counted_placebos as (
    delete from placebo_counts counted using annotation_runs run where counted.run_id = run.run_id
        and run.corpus_id = :corpus_id
),
history as (
    update history_files set state = 'leaving' where owner_id = :corpus_id
        and table_name in ('corpus_joined', 'corpus_left')
),
spare as (
    delete from corpus_spare_records where corpus_id = :corpus_id returning 1
),
memberships as (
    delete from corpus_documents where corpus_id = :corpus_id returning 1
)
select 'corpus_documents' as table_name, count(*) as rows from memberships
union all
select 'corpus_spare_records', count(*) from spare

-- name: publication
-- A release (kind release) or model (kind model) by its id, with the runs that work with it now.
select publication.uri, publication.withdrawn_at,
       array(
           select run.run_id
           from annotation_runs run
           where run.state = 'running'
             and (run.run_id in (select run_id from run_releases where release_id = publication.release_id)
                  or run.run_id in (select run_id from run_models where model_id = publication.model_id)
                  or publication.uri = rtrim(run.parameters ->> 'model', '/'))
           order by run.run_id
       ) as running
from (
    select release_id, null as model_id, uri, withdrawn_at
    from dataset_releases where :kind = 'release' and release_id = :publication_id
    union all
    select null, model_id, uri, withdrawn_at
    from finetuned_models where :kind = 'model' and model_id = :publication_id
) publication

-- name: texts_of_records
-- Take the texts of these records of a corpus, in each of its versions; returns which records there are.
with held as (
    select record_id, document_id from corpus_documents
    where corpus_id = :corpus_id and record_id = any(cast(:record_ids as text[]))
    union
    select record_id, document_id from corpus_spare_records
    where corpus_id = :corpus_id and record_id = any(cast(:record_ids as text[]))
),
taken as (
    insert into texts_to_forget (document_id, text_id)
    select distinct document_id, document_id from held
)
select distinct record_id from held

-- name: texts_of_corpus
-- Take the texts that this corpus holds or held and that no other corpus holds at its newest version; and
-- those that were forgotten before and are in a release of a run over this corpus.
insert into texts_to_forget (document_id, text_id)
select member.document_id, member.document_id
from (
    select document_id from corpus_documents where corpus_id = :corpus_id
    union
    select document_id from corpus_spare_records where corpus_id = :corpus_id
) member
where not exists (
      select from corpus_documents other
      where other.document_id = member.document_id and other.corpus_id <> :corpus_id
          and other.left_version is null
  )
  and not exists (
      select from corpus_spare_records other
      where other.document_id = member.document_id and other.corpus_id <> :corpus_id
  )
union
select forgotten.document_id, forgotten.document_id
from forgotten_documents forgotten
join release_calls call on call.document_id = forgotten.document_id
join dataset_releases release on release.release_id = call.release_id
join annotation_runs run on run.run_id = release.run_id
where run.corpus_id = :corpus_id

-- name: named_texts
-- Take the texts of these documents or variants, and of those that were forgotten before.
insert into texts_to_forget (document_id, text_id)
select document_id, coalesce(variant_of, document_id) from documents
    where document_id = any(cast(:document_ids as uuid[]))
union
select document_id, document_id from forgotten_documents
    where document_id = any(cast(:document_ids as uuid[]))

-- name: all_forgotten_texts
insert into texts_to_forget (document_id, text_id)
select document_id, document_id from forgotten_documents

-- name: texts_at_hand
-- How many texts are at hand, and which of these ids are not among them.
select (select count(distinct text_id) from texts_to_forget) as texts,
       array(select unnest(cast(:document_ids as uuid[])) except select document_id from texts_to_forget
           order by 1) as missing

-- name: sources
-- The files from which the texts were ingested, with one line of each.
select member.file_uri, count(distinct member.document_id) as texts, min(member.line) as line
from corpus_documents member
where member.document_id in (select document_id from texts_to_forget)
group by member.file_uri
order by member.file_uri

-- name: same_records
-- Records that hold, or held at another version of their corpus, one of the texts at hand and also another
-- text.
with held as (
    select corpus_id, record_id, document_id from corpus_documents where record_id is not null
    union
    select corpus_id, record_id, document_id from corpus_spare_records where record_id is not null
),
of_texts as (
    select distinct held.corpus_id, held.record_id from held join texts_to_forget using (document_id)
)
select corpora.uri, record_id, count(distinct held.document_id) as texts
from of_texts
join held using (corpus_id, record_id)
join corpora using (corpus_id)
where held.document_id not in (select document_id from texts_to_forget)
group by corpora.uri, record_id
order by corpora.uri, record_id

-- name: releases
-- Releases that hold one of the texts, the oldest first.
select release.release_id, release.run_id, release.uri, release.withdrawn_at, held.texts
from dataset_releases release
cross join lateral (
    select count(distinct call.document_id) as texts
    from release_calls call
    join texts_to_forget text on text.document_id = call.document_id
    where call.release_id = release.release_id
) held
where held.texts > 0
order by release.created_at, release.release_id

-- name: models
-- Models that were trained on one of these releases, the oldest first.
select model_id, release_id, run_id, uri, withdrawn_at
from finetuned_models
where release_id = any(cast(:release_ids as text[]))
order by created_at, model_id

-- name: rejections_of_corpora
-- What was found in the refused records of the corpora that hold one of the texts.
select corpus_id, file_uri, line, detail
from rejected_documents
where length(detail) >= :characters
  and corpus_id in (
      select corpus_id from corpus_documents where document_id in (select document_id from texts_to_forget)
  )

-- name: texts_of_batch
-- The texts themselves, to be looked for in what was found in refused records.
select text from documents where document_id in (select text_id from texts_to_forget)
