-- What an audit reads, a page at a time: one row with `position`, `items`, `unprovable` and `found`, or the
-- rows to compare.

-- name: release_calls
select count(*) as calls from release_calls where release_id = :release_id

-- name: released
-- What Postgres says of texts of a release: their calls, and the row that holds url and date in the run that
-- made it (null: not a member).
select asked.document_id, member.variant_id, member.url,
       array(
           select cast(call.call_id as text) || ' ' || call.tool || ' ' || call.scoring_recipe_id
           from release_calls call
           where call.release_id = :release_id and call.document_id = asked.document_id
           order by 1
       ) as calls
from unnest(cast(:document_ids as uuid[])) as asked (document_id)
left join lateral (
    select held.variant_id, record.url
    from run_documents held
    join documents record on record.document_id = held.variant_id
    where held.run_id = :run_id and held.document_id = asked.document_id
) member on true

-- name: rows_of_released_calls
-- The rows of calls of one tool in texts of a release, by the recipes of its definition: the fields of
-- release.format.ReleasedCall, the document or variant under which they are, and the answer of the tool that
-- the result was made of. No row for a call whose rows are gone.
select released.document_id, cast(released.call_id as text) as call_id, loss.document_id as variant_id,
    call.call_input as input,
       call.position_char, call.position_probability, loss.result, loss.loss_without_call,
           loss.loss_without_result,
       loss.loss_with_result, loss.loss_without_call_full_context, loss.loss_reduction,
           answer.results[loss.result_rank + 1] as answer
from unnest(cast(:document_ids as uuid[]), cast(:call_ids as uuid[])) released (document_id, call_id)
cross join lateral (
    select released.document_id as variant_id
    union all
    select variant.document_id from documents variant where variant.variant_of = released.document_id
) held
join call_losses loss
    on loss.scoring_recipe_id = :scoring_recipe_id and loss.document_id = held.variant_id
        and loss.call_id = released.call_id
join candidate_calls call
    on call.sampling_recipe_id = :sampling_recipe_id and call.document_id = held.variant_id
        and call.call_id = released.call_id
left join recipes execution on execution.recipe_id = :execution_recipe_id
left join call_results answer
    on answer.tool = :tool and answer.tool_version = execution.definition ->> 'tool_version'
        and answer.input_key = call.input_key

-- name: models_of_run
-- The models of a run with what they were made of; is_of_last_release: the run was not released again since.
select made.run_id, made.model_id, made.without_calls, model.release_id, model.definition, run.parameters,
    run.model_identity,
       released.release_id as of_run_release_id,
           coalesce(released.released_at <= made.published_at, false) as is_of_last_release
from run_models made
join finetuned_models model using (model_id)
join annotation_runs run on run.run_id = made.run_id
left join run_releases released on released.run_id = made.run_id
-- Parameters that were changed are found as that.
where made.run_id = :run_id and coalesce(run.registered_hash = registration_hash(run), true)
order by made.without_calls

-- name: scores
-- The scores of a run; is_replaced: a later evaluation wrote the file of inputs again.
select run_id, suite, subset, model, variant, call_start_rank, metric, inputs, score, low, high, call_shares,
    inputs_with_call,
       score_with_call, score_without_call, inputs_uri, inputs_sha256,
       inputs_sha256 <> first_value(inputs_sha256) over (partition by inputs_uri
           order by evaluated_at desc) as is_replaced
from evaluation_scores
where run_id = :run_id
order by suite, variant, call_start_rank, subset, metric, evaluated_at

-- name: documents
-- Audit: the next documents. Their ids are hashes of their texts (those of variants of url and date, too),
-- and a corpus holds each of them.
with page as materialized (
    select document_id, text, url, document_date, variant_of, created_at, record_hash
    from documents document
    where document_id > cast(:after as uuid)
      and (cast(:corpus_ids as text[]) is null
           or exists (select from corpus_documents member
                      where member.document_id = document.document_id
                          and member.corpus_id = any(cast(:corpus_ids as text[])))
           or exists (select from corpus_documents member
                      where member.variant_id = document.document_id
                          and member.corpus_id = any(cast(:corpus_ids as text[]))))
    order by document_id
    limit :page_size
),
named as materialized (
    select page.document_id, page.created_at, page.variant_of,
        page.record_hash <> variant_id_of(document_id, url, document_date) as differs,
           content_uuid(hashed_part('document') || hashed_part(text)) as by_text,
           variant_id_of(variant_of, url, document_date) as by_record
    from page
),
found as (
    select 'changed' as kind, 'documents' as relation, cast(document_id as text) as place,
           format('expected the content that the id is the hash of, found one with the hash %s',
               coalesce(by_record, by_text)) as what,
           'Restore the row from a backup: it is not computed again.' as remedy, cast(null as jsonb) as repair
    from named
    where by_text <> coalesce(variant_of, document_id)
        or (variant_of is not null and by_record <> document_id)
    union all
    select 'changed', 'documents', cast(document_id as text),
        'expected the url and date that the row was written with, found others',
           'Restore the row from a backup: it is not computed again.', null
    from named
    where differs
    union all
    select 'orphaned', 'documents', cast(document_id as text),
        'expected a corpus that holds the text, found none',
           'An ingestion was interrupted. Ingest its corpus again, or delete the row (--repair).',
           jsonb_build_object('action', 'delete_document', 'document_id', document_id)
    from named
    where created_at < now() - make_interval(secs => :orphans_after_seconds)
      and not exists (select from corpus_documents member where member.document_id = named.document_id)
      and not exists (select from corpus_documents member where member.variant_id = named.document_id)
      and not exists (select from corpus_spare_records spare where spare.document_id = named.document_id)
      and not exists (select from documents variant where variant.variant_of = named.document_id)
)
select case when (select count(*) from page) = :page_size
            then (select cast(document_id as text) from page order by document_id desc
                limit 1) end as position,
       (select count(*) from page) as items,
       (select count(*) from page where variant_of is null and record_hash is null) as unprovable,
       coalesce((select jsonb_agg(to_jsonb(listed)) from (select * from found limit :most_findings) listed),
           '[]') as found

-- name: corpus
-- Audit: the sums of a corpus. What its files are said to hold against the rows; its newest version against
-- its files; documents at each version against membership. What held a text that was forgotten since holds
-- less than it says, rightly.
with file as materialized (
    select file_uri, records, accepted, duplicates, rejected, usable, read_as = -1 as has_forgotten
    from corpus_files
    where corpus_id = :corpus_id
),
held as (
    select file_uri, count(*) as documents from corpus_documents
    where corpus_id = :corpus_id and left_version is null group by file_uri
),
spare as (
    select file_uri, count(*) as duplicates from corpus_spare_records
    where corpus_id = :corpus_id and why = 'duplicate' group by file_uri
),
refused as (
    select file_uri, sum(counted.records) as rejected,
           sum(case counted.reason when 'same_id_later' then counted.records
               else least(counted.records, :refused_rows) end) as shown
    from rejected_records counted
    where counted.corpus_id = :corpus_id
    group by file_uri
),
shown as (
    select file_uri, sum(case reason when 'same_id_later' then rows
        else least(rows, :refused_rows) end) as rows
    from (
        select file_uri, reason, count(*) as rows from rejected_documents where corpus_id = :corpus_id
            group by file_uri, reason
    ) reasons
    group by file_uri
),
newest as (
    select * from corpus_versions where corpus_id = :corpus_id order by version desc limit 1
),
summed as (
    select count(*) as files, coalesce(sum(records), 0) as records, coalesce(sum(accepted), 0) as documents,
           coalesce(sum(duplicates), 0) as duplicates, coalesce(sum(rejected), 0) as rejected,
               coalesce(bool_or(has_forgotten), false) as has_forgotten
    from file
),
change as (
    select first_version as version, count(*) as documents from corpus_documents where corpus_id = :corpus_id
        group by first_version
    union all
    select left_version, -count(*) from corpus_documents where corpus_id = :corpus_id group by left_version
),
member as (
    select made.version, made.documents as said,
           (select coalesce(sum(documents), 0) from change where change.version <= made.version) as documents
    from corpus_versions made
    where made.corpus_id = :corpus_id
),
compared as (
    select 'corpus_files' as relation, file.file_uri as place, sum.name, sum.expected, sum.found
    from file
    left join held using (file_uri)
    left join spare using (file_uri)
    left join refused using (file_uri)
    left join shown using (file_uri)
    cross join lateral (values
        ('documents', file.accepted, coalesce(held.documents, 0)),
        ('duplicates', case when file.usable is not null
            then file.duplicates end, coalesce(spare.duplicates, 0)),
        ('rejected records', file.rejected, coalesce(refused.rejected, 0)),
        ('rows of rejected records', coalesce(refused.shown, 0), coalesce(shown.rows, 0))
    ) as sum (name, expected, found)
    where not file.has_forgotten
    union all
    select 'corpus_versions', format('version %s of corpus %s', newest.version, cast(:corpus_id as text)),
        sum.name, sum.expected, sum.found
    from newest
    cross join summed
    cross join lateral (values
        ('files', newest.files, summed.files), ('records', newest.records, summed.records),
        ('documents', newest.documents, summed.documents),
            ('duplicates', newest.duplicates, summed.duplicates),
        ('rejected records', newest.rejected, summed.rejected)
    ) as sum (name, expected, found)
    where not summed.has_forgotten
    union all
    select 'corpus_versions', format('version %s of corpus %s', member.version, cast(:corpus_id as text)),
        'members', member.said, member.documents
    from member
    where not exists (select from forgotten_documents)
      -- A member that is lost from the newest version is found with its file.
      and not exists (select from file join held using (file_uri) where file.accepted <> held.documents)
      and (select coalesce(sum(accepted), 0) from file) = (select coalesce(sum(documents), 0) from held)
),
found as (
    select case when bool_or(found < expected) then 'lost' else 'doubled' end as kind, relation, place,
           'expected ' || string_agg(format('%s %s, found %s', expected, name, found), '; '
               order by name) as what,
           'Read the files again (--repair marks them for the next `toolformer-ops stage ingest`); sums of an older version stay as they are.'
               as remedy,
           jsonb_build_object('action', 'read_again', 'corpus_id', cast(:corpus_id as text),
                              'lacks_members', bool_or(name in ('documents', 'members')
                                  and found < expected)) as repair
    from compared
    where expected <> found
    group by relation, place
)
select cast(null as text) as position,
       (select count(*) from file) + (select count(*) from member) as items,
       (select count(*) from file where has_forgotten) as unprovable,
       coalesce((select jsonb_agg(to_jsonb(listed)) from (select * from found limit :most_findings) listed),
           '[]') as found

-- name: recipes
select recipe_id, stage, tool, parent_recipe_id, definition
from recipes
where cast(:recipe_ids as text[]) is null or recipe_id = any(cast(:recipe_ids as text[]))
order by recipe_id

-- name: in_history_alone
-- Of these recipes those whose rows retention has dropped.
select recipe_id
from recipes
where recipe_id = any(cast(:recipe_ids as text[]))
  and dropped_at is not null
  and partition_of(cast(:table_of_stage as jsonb) ->> stage, recipe_id) is null

-- name: detached
-- Tables of these recipes that are partitions no more.
select parent as relation, recipe_id
from unnest(cast(:tables as text[])) parent
cross join unnest(cast(:recipe_ids as text[])) recipe_id
join pg_class partition on partition.oid = partition_of(parent, recipe_id)
where not partition.relispartition
order by 1, 2

-- name: finished
-- Audit: what finished_work says of the newest version of a corpus that a recipe has finished: each document
-- due has its ledger row.
with due as (
    select member.variant_id as document_id
    from members_beyond(:corpus_id, :version, :ordinal_limit, 0, 0, :reads_record) member
    where :stage = 'filter'
       or exists (
           select from filter_decisions decision
           where decision.filter_recipe_id = :filter_recipe_id and decision.document_id = member.variant_id
               and decision.kept
       )
),
found as (
    select 'lost' as kind, 'stage_ledger' as relation,
           format('%s of %s under %s', cast(:stage as text), due.document_id,
               cast(:recipe_id as text)) as place,
           format('expected a ledger row, since version %s of corpus %s is finished, found none',
               cast(:version as integer), cast(:corpus_id as text))
               as what,
           'Mark the work as unfinished (--repair): the next run with this recipe does it.' as remedy,
           jsonb_build_object('action', 'rows', 'stage', cast(:stage as text), 'recipe_id',
               cast(:recipe_id as text), 'document_id', due.document_id,
                              'unless', format('filter of %s under %s', due.document_id,
                                  cast(:filter_recipe_id as text))) as repair
    from due
    left join stage_ledger done
        on done.recipe_id = :recipe_id and done.document_id = due.document_id and done.stage = :stage
    where done.document_id is null
)
select cast(null as text) as position,
       (select count(*) from due) as items,
       0 as unprovable,
       coalesce((select jsonb_agg(to_jsonb(listed)) from (select * from found limit :most_findings) listed),
           '[]') as found

-- name: finished_newest
-- Of each recipe the newest version of each corpus that it has finished: as finished_work says, or the
-- numbers of a finished run.
with said as (
    select recipe_id, corpus_id, version, ordinal_limit
    from finished_work
    union all
    select stage.recipe_id, run.corpus_id, run.corpus_version, coalesce(run.ordinal_limit, 2147483647)
    from annotation_runs run
    join stored_runs stored using (run_id)
    join run_tools rt using (run_id)
    cross join stages_of(rt) stage
    join finished_run_progress progress
        on progress.run_id = run.run_id and progress.tool = rt.tool and progress.stage = stage.stage
            and progress.done = progress.total
    where rt.last_document_id is null and not waits_for_work(rt, stored.stored_at)
)
select distinct on (recipe_id, corpus_id) recipe_id, corpus_id, version, ordinal_limit
from said
where recipe_id = any(cast(:recipe_ids as text[]))
order by recipe_id, corpus_id, version desc, ordinal_limit desc

-- name: numbered_runs
-- Finished runs whose numbers can be counted again: all was done, and nothing deleted since. Each behind
-- those that its own may follow from.
select run.run_id
from annotation_runs run
join stored_runs stored using (run_id)
where run.run_id = any(cast(:run_ids as text[]))
  and exists (select from run_tools tool where tool.run_id = run.run_id)
  and not exists (select from run_tools rt where rt.run_id = run.run_id
      and waits_for_work(rt, stored.stored_at))
  and not exists (select from finished_run_progress where finished_run_progress.run_id = run.run_id
      and done <> total)
  and not exists (select from forgotten_documents where coalesce(removed_at, 'infinity') >= stored.stored_at)
  and not exists (select from run_releases made where made.run_id = run.run_id
      and made.released_at > stored.stored_at)
order by run.corpus_id, run.corpus_version, run.started_at, run.run_id

-- name: forget_numbers
-- Delete the numbers of a run, and of the runs over its corpus that its own must not follow from: those that
-- come later, or (not from_earlier) all. In a transaction that is rolled back.
with unproven as materialized (
    select other.run_id
    from annotation_runs run
    join annotation_runs other on other.corpus_id = run.corpus_id
    where run.run_id = :run_id
      and (not :from_earlier
           or (other.corpus_version, other.started_at, other.run_id) >= (run.corpus_version, run.started_at,
               run.run_id))
),
placebos as (
    delete from placebo_counts where run_id in (select run_id from unproven)
),
yields as (
    delete from checked_yields where run_id in (select run_id from unproven)
)
update annotation_runs set numbers_stored_at = null where run_id in (select run_id from unproven)
    and numbers_stored_at is not null

-- name: stage_rows
-- Audit: the rows of the next documents of a stage against the number and the hash that the ledger keeps, and
-- whether the stage before is in the ledger. In `written` stands the stage's own statement below, which
-- returns of each document
--   found, expected  numbers of rows; expected if the ledger does not say it
--   row_texts        what the ledger's hash is made of
--   wrong, unless    what else is wrong, in a sentence; a place that explains it if something is wrong there,
--   too
with stage (stage, relation, before, work, nothing, counted, hashed, remedy) as (values
    ('filter', 'filter_decisions', null, 'filtering', cast('{0}' as integer[]), '%s decisions', 'decisions',
     'Delete the document''s rows (--repair): the next run with this recipe writes them again.'),
    ('sample', 'candidate_calls', 'filter', 'sampling', '{0,0}', '%s calls and %s pruned positions', 'rows',
     'Delete the document''s rows of this and the later stages (--repair): the next run with this recipe computes them again.'),
    ('execute', 'call_results', 'sample', 'execution', '{0}', 'results of %s inputs', 'results',
     'Delete the results and what follows from them (--repair): the next run with this recipe asks the tool again.'),
    ('score', 'call_losses', 'execute', 'scoring', '{0}', 'the losses of %s calls', 'losses',
     'Delete the document''s losses (--repair): the next run with this recipe computes them again.'),
    ('placebo', 'placebo_losses', 'score', 'placebos', '{0}', '%s placebos', 'placebos',
     'Delete the document''s placebos (--repair): the next run with this recipe computes them again.')
),
page as materialized (
    select document_id, rows_hash, committed_at,
           case cast(:stage as text)
               when 'sample' then array[rows_written,
                   coalesce(cast(counts ->> 'positions_pruned_below' as integer), 0)]
               when 'execute' then null  -- results are shared, so that the ledger's own number is smaller
               else array[rows_written] end as expected
    from stage_ledger
    where stage = :stage and recipe_id = :recipe_id and document_id > cast(:after as uuid)
    order by document_id
    limit :page_size
),
bounds as materialized (
    select case when (select count(*) from page) = :page_size
                then (select document_id from page order by document_id desc limit 1)
                else 'ffffffff-ffff-ffff-ffff-ffffffffffff' end as until
),
recipe as materialized (
    select cast(definition ->> 'prune_below' as double precision) as prune_below,
           cast(definition ->> 'probability_tokens' as integer) as tokens,
           (select array_agg(cast(weight as double precision) order by place)
            from jsonb_array_elements_text(definition -> 'weights') with ordinality listed (weight,
                place)) as weights
    from recipes
    where recipe_id = case cast(:stage as text) when 'placebo' then :previous_recipe_id else :recipe_id end
),
written as (
{rows}
),
judged as (
    select stage.*, document_id, page.document_id is not null as in_ledger, page.rows_hash, written.wrong,
        written.unless,
           coalesce(page.expected, written.expected, nothing) as expected,
               coalesce(written.found, nothing) as found,
           page.rows_hash <> rows_hash(written.row_texts) as differs,
           stage.stage = 'sample' and not exists (select from documents document
               where document.document_id = coalesce(page.document_id, written.document_id))
               as is_gone,
           page.document_id is not null and stage.before is not null and not exists (
               select from stage_ledger before
               where before.recipe_id = :previous_recipe_id and before.stage = stage.before
                   and before.document_id = page.document_id
           ) as lacks_before,
           -- Retention dropped them, and a later run may have worked on other documents since.
           page.committed_at <= (select dropped_at from recipes
               where recipe_id = :previous_recipe_id) as is_before_drop
    from page
    full join written using (document_id)
    join stage on stage.stage = :stage
),
compared as (
    select *, found[1] < expected[1] or found[2] < expected[2] as lacks, found[1] > expected[1]
        or found[2] > expected[2] as exceeds
    from judged
    where (lacks_before and is_before_drop) is not true
),
found as (
    select case when not in_ledger or lacks then 'lost' when is_gone then 'orphaned' when exceeds
        then 'doubled' else 'changed' end as kind,
           case when not in_ledger then 'stage_ledger'
                when found[1] = expected[1] and found[2] <> expected[2] then 'pruned_positions'
                else relation end as relation,
           format('%s of %s under %s', stage, document_id, cast(:recipe_id as text)) as place,
           case when not in_ledger then format('expected a ledger row beside ' || counted || ', found none',
               variadic found)
                when lacks or exceeds
                then format('expected ' || counted, variadic expected)
                     || case stage when 'execute' then ' of ' || cast(:tool as text)
                         else ', as the ledger says' end
                     || ', found ' || array_to_string(found, ' and ')
                when is_gone then 'expected the document of these rows, found none'
                when differs then format('expected the %s whose hash the ledger keeps, found others', hashed)
                else wrong end as what,
           remedy,
           jsonb_build_object('action', 'rows', 'stage', stage, 'recipe_id', cast(:recipe_id as text),
               'document_id', document_id,
                              'unless', unless) as repair
    from compared
    -- Calls that are lost or changed ask for other inputs: that is found in the stage before.
    where (not in_ledger or lacks or exceeds or is_gone or differs or wrong is not null)
        and not (stage = 'execute' and lacks_before)
    union all
    select 'lost', 'stage_ledger',
        format('%s of %s under %s', before, document_id, cast(:previous_recipe_id as text)),
           format('expected a ledger row before that of %s, found none', work),
           'Delete the document''s rows of this and the later stages (--repair): the next run with this recipe computes them again.',
           jsonb_build_object('action', 'rows', 'stage', before, 'recipe_id',
               cast(:previous_recipe_id as text), 'document_id', document_id)
    from compared
    where lacks_before
)
select case when (select count(*) from page) = :page_size
    then (select cast(until as text) from bounds) end as position,
       (select count(*) from page) as items,
       (select count(*) from judged where in_ledger
           and (rows_hash is null or lacks_before and is_before_drop)) as unprovable,
       coalesce((select jsonb_agg(to_jsonb(listed)) from (select * from found limit :most_findings) listed),
           '[]') as found

-- name: filter
-- Of stage_rows: filter decisions.
select decision.document_id, array[cast(count(*) as integer)] as found, cast(null as integer[]) as expected,
       string_agg(filter_row_text(decision), chr(10) order by decision.paragraph) as row_texts,
       cast(null as text) as wrong, cast(null as text) as unless
from filter_decisions decision
where decision.filter_recipe_id = :recipe_id
  and decision.document_id > cast(:after as uuid) and decision.document_id <= (select until from bounds)
group by decision.document_id

-- name: sample
-- Of stage_rows: candidate calls and pruned positions; ids of the calls and of their inputs, positions inside
-- the text.
select document_id, array[coalesce(calls.row_count, 0), coalesce(pruned.row_count, 0)] as found,
    cast(null as integer[]) as expected,
       concat_ws(chr(10), calls.row_texts, pruned.row_texts) as row_texts,
       case when calls.misnamed > 0 then 'expected ids of calls and inputs that are the hashes of their content, found others'
            when beyond.is_beyond then 'expected positions inside the text, found one after its end' end as wrong,
       case when beyond.is_beyond or calls.reads_record then cast(document_id as text) end as unless
from (
    select call.document_id, cast(count(*) as integer) as row_count, max(call.position_char) as last_char,
           string_agg(call_row_text(call), chr(10) order by call.call_id) as row_texts,
           bool_or(read.hash <> call.document_id) as reads_record,
           count(*) filter (
               where call.call_id <> content_uuid(
                         hashed_part(:recipe_id) || hashed_part(cast(read.hash as text))
                             || hashed_part(cast(call.paragraph as text))
                         || hashed_part(cast(call.position_token as text)) || hashed_part(call.call_text))
                  or call.input_key is distinct from content_uuid(hashed_part(call.effective_input))) as misnamed
    from candidate_calls call
    cross join lateral (
        -- What the tool reads: the text, whose hash is the document's id; or the record.
        select case when (select definition ? 'record_version' from recipes where recipe_id = :recipe_id)
            then (
                   select variant_id_of(coalesce(record.variant_of, record.document_id), record.url,
                       record.document_date)
                   from documents record
                   where record.document_id = call.document_id
               ) else call.document_id end as hash
    ) read
    where call.sampling_recipe_id = :recipe_id
      and call.document_id > cast(:after as uuid) and call.document_id <= (select until from bounds)
    group by call.document_id
) calls
full join (
    select position.document_id, cast(count(*) as integer) as row_count,
        max(position.position_char) as last_char,
           string_agg(pruned_row_text(position), chr(10)
               order by position.paragraph, position.position_token) as row_texts
    from pruned_positions position
    where position.sampling_recipe_id = :recipe_id
      and position.document_id > cast(:after as uuid) and position.document_id <= (select until from bounds)
    group by position.document_id
) pruned using (document_id)
left join lateral (
    select greatest(calls.last_char, pruned.last_char) > char_length(document.text) as is_beyond
    from documents document
    where document.document_id = coalesce(calls.document_id, pruned.document_id)
) beyond on true

-- name: execute
-- Of stage_rows: the results of all inputs that a document asks; ids of inputs.
select asked.document_id, array[cast(count(answer.row_text) as integer)] as found,
    array[cast(count(*) as integer)] as expected,
       string_agg(answer.row_text, chr(10) order by asked.input_key) as row_texts,
       case when bool_or(answer.misnamed)
           then 'expected ids of inputs that are the hashes of their content, found others' end as wrong,
       format('sample of %s under %s', asked.document_id, cast(:previous_recipe_id as text)) as unless
from (
    select distinct call.document_id, call.input_key
    from candidate_calls call
    join page using (document_id)
    where call.sampling_recipe_id = :previous_recipe_id
      and call.input_key is not null
      and call.document_id > cast(:after as uuid) and call.document_id <= (select until from bounds)
) asked
left join lateral (
    select result_row_text(result) as row_text,
        result.input_key <> content_uuid(hashed_part(result.input)) as misnamed
    from call_results result
    where result.tool = :tool and result.tool_version = :tool_version and result.input_key = asked.input_key
    limit 1  -- by its key
) answer on true
group by asked.document_id

-- name: score
-- Of stage_rows: losses; those of scored calls follow from their tokens' log probabilities, and bounds of
-- pruned calls are below prune_below.
select loss.document_id, array[cast(count(*) as integer)] as found, cast(null as integer[]) as expected,
       string_agg(losses_row_text(loss), chr(10) order by loss.call_id) as row_texts,
       'expected losses that follow from their tokens'' log probabilities, and of pruned calls bounds below prune_below, found '
           || nullif(count(*) filter (
                  where loss.reason = 'pruned_below' and loss.gain_bound >= recipe.prune_below
                     -- The terms are stored in single precision.
                     or loss.reason is null and (
                            abs(loss.loss_without_call - weighted_loss(loss.token_log_probabilities, 1,
                                recipe.weights))
                            + abs(loss.loss_without_result - weighted_loss(loss.token_log_probabilities, 2,
                                recipe.weights))
                            + abs(loss.loss_with_result - weighted_loss(loss.token_log_probabilities, 3,
                                recipe.weights))
                            > 1e-4 * (1 + loss.loss_without_call + loss.loss_without_result + loss.loss_with_result)
                            or abs(loss.probability_with - next_tokens_probability(loss.token_log_probabilities, 3, recipe.tokens)) > 1e-6
                            or abs(loss.probability_without - greatest(
                                   next_tokens_probability(loss.token_log_probabilities, 1, recipe.tokens),
                                   next_tokens_probability(loss.token_log_probabilities, 2, recipe.tokens),
                                   next_tokens_probability(loss.token_log_probabilities, 4,
                                       recipe.tokens))) > 1e-6)), 0)
           || ' calls without' as wrong,
       cast(null as text) as unless
from call_losses loss
left join recipe on true
where loss.scoring_recipe_id = :recipe_id
  and loss.document_id > cast(:after as uuid) and loss.document_id <= (select until from bounds)
group by loss.document_id

-- name: placebo
-- Of stage_rows: placebos; bounds of pruned ones are below the prune_below of the scoring's recipe, and the
-- means of each call are stored.
select placebo.document_id, array[cast(count(*) as integer)] as found, cast(null as integer[]) as expected,
       string_agg(placebo_row_text(placebo), chr(10) order by placebo.call_id, placebo.number) as row_texts,
       coalesce(
           'expected bounds below prune_below of pruned placebos, found '
               || nullif(count(*) filter (where placebo.reason = 'pruned_below' and recipe.tokens is null
                   and placebo.reduction_bound >= recipe.prune_below), 0)
               || ' without',
           case when array(
                    select cast(row(own.call_id, avg(own.reduction order by own.number),
                        avg(own.information order by own.number), count(*),
                                max(own.probability_with) filter (where own.number = 1)) as text)
                    from placebo_losses own
                    where own.placebo_recipe_id = :recipe_id and own.document_id = placebo.document_id
                        and own.information is not null
                    group by own.call_id
                    order by own.call_id
                ) <> array(
                    select cast(row(stored.call_id, stored.placebo_reduction, stored.information,
                        stored.placebos, stored.probability) as text)
                    from call_information stored
                    where stored.placebo_recipe_id = :recipe_id and stored.document_id = placebo.document_id
                    order by stored.call_id
                ) then 'expected the means of its placebos in call_information, found others' end) as wrong,
       cast(null as text) as unless
from placebo_losses placebo
left join recipe on true
where placebo.placebo_recipe_id = :recipe_id
  and placebo.document_id > cast(:after as uuid) and placebo.document_id <= (select until from bounds)
group by placebo.document_id
