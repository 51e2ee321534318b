-- Delete the texts at hand and every row derived from them; returns the number of rows by table. The inputs that their calls asked for are
-- kept in forgotten_inputs until forget_results.sql has looked who else asks for them.
with known_recipes as (
    select distinct recipe_id
    from run_tools
    cross join unnest(array[filter_recipe_id, sampling_recipe_id, execution_recipe_id, scoring_recipe_id, placebo_recipe_id]) as recipe_id
    where recipe_id is not null
),
calls as (
    delete from candidate_calls call using texts_to_forget text where call.document_id = text.document_id
    returning call.sampling_recipe_id, call.call_id, call.input_key
),
inputs as (
    insert into forgotten_inputs (tool, input_key)
    select distinct asked.tool, calls.input_key
    from calls
    join run_tools asked on asked.sampling_recipe_id = calls.sampling_recipe_id
    where calls.input_key is not null
    on conflict do nothing
),
pruned as (
    delete from pruned_positions row using texts_to_forget text where row.document_id = text.document_id returning 1
),
lost as (
    delete from lost_samples row using texts_to_forget text where row.document_id = text.document_id returning 1
),
losses as (
    delete from call_losses row using texts_to_forget text where row.document_id = text.document_id returning 1
),
placebos as (
    delete from placebo_losses row using texts_to_forget text where row.document_id = text.document_id returning 1
),
-- Placebos of other texts keep their losses, and lose what the result was.
pooled as (
    delete from placebo_pool_results row using texts_to_forget text where row.document_id = text.document_id returning 1
),
decisions as (
    delete from filter_decisions row using known_recipes known, texts_to_forget text
    where row.filter_recipe_id = known.recipe_id and row.document_id = text.document_id
    returning 1
),
ledger as (
    delete from stage_ledger row using known_recipes known, texts_to_forget text
    where row.recipe_id = known.recipe_id and row.document_id = text.document_id
    returning 1
),
chained as (
    delete from chained_texts row using texts_to_forget text where row.document_id = text.document_id
),
failed as (
    delete from failed_documents row using texts_to_forget text where row.document_id = text.document_id
),
judged as (
    delete from judgements row
    where row.document_id in (select document_id from texts_to_forget) or row.source_call_id in (select call_id from calls)
),
tries as (
    delete from micro_batch_tries row using texts_to_forget text where text.document_id = any (row.document_ids)
),
names as (
    select document_id as name from texts_to_forget
    union
    select call_id from calls
),
quality as (
    update quality_results result
    set observed = result.observed || '{"examples": []}',
        message = format('%s does not hold; the rows that were named here held a text that is forgotten', result.check_name)
    where not result.success
      and exists (
          select
          from regexp_matches(
              result.observed::text || result.message,
              '[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}', 'g') as found (parts)
          join names on names.name = found.parts[1]::uuid
      )
    returning 1
),
-- Their files are read again by the next ingestion, which refuses the texts and counts them as removed.
files as (
    update corpus_files file set read_as = -1
    from (
        select row.corpus_id, row.file_uri from corpus_documents row join texts_to_forget text using (document_id)
        where row.left_version is null
        union
        select row.corpus_id, row.file_uri from corpus_spare_records row join texts_to_forget text using (document_id)
    ) held
    where file.corpus_id = held.corpus_id and file.file_uri = held.file_uri
),
spare as (
    delete from corpus_spare_records row using texts_to_forget text where row.document_id = text.document_id returning 1
),
-- What a check counted over the corpora that held the texts is counted anew by the next.
counted_yields as (
    delete from checked_yields counted
    using annotation_runs run, corpus_documents member, texts_to_forget text
    where counted.run_id = run.run_id and run.corpus_id = member.corpus_id and member.document_id = text.document_id
),
counted_placebos as (
    delete from placebo_counts counted
    using annotation_runs run, corpus_documents member, texts_to_forget text
    where counted.run_id = run.run_id and run.corpus_id = member.corpus_id and member.document_id = text.document_id
),
memberships as (
    delete from corpus_documents row using texts_to_forget text where row.document_id = text.document_id returning 1
),
texts as (
    delete from documents row using texts_to_forget text where row.document_id = text.document_id returning 1
)
select 'documents' as table_name, count(*) as rows from texts
union all select 'corpus_documents', count(*) from memberships
union all select 'corpus_spare_records', count(*) from spare
union all select 'filter_decisions', count(*) from decisions
union all select 'candidate_calls', count(*) from calls
union all select 'pruned_positions', count(*) from pruned
union all select 'lost_samples', count(*) from lost
union all select 'call_losses', count(*) from losses
union all select 'placebo_losses', count(*) from placebos
union all select 'placebo_pool_results', count(*) from pooled
union all select 'stage_ledger', count(*) from ledger
union all select 'quality_results', count(*) from quality
