-- How many rows forget_delete.sql and forget_results.sql would delete or change, by table.
with known_recipes as (
    select distinct recipe_id
    from run_tools
    cross join unnest(array[filter_recipe_id, sampling_recipe_id, execution_recipe_id, scoring_recipe_id, placebo_recipe_id]) as recipe_id
    where recipe_id is not null
),
calls as materialized (
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
),
names as (
    select document_id as name from texts_to_forget
    union
    select call_id from calls
)
select 'documents' as table_name, count(*) as rows
from documents row join texts_to_forget text on text.document_id = row.document_id
union all
select 'corpus_documents', count(*)
from corpus_documents row join texts_to_forget text on text.document_id = row.document_id
union all
select 'corpus_spare_records', count(*)
from corpus_spare_records row join texts_to_forget text on text.document_id = row.document_id
union all
select 'filter_decisions', count(*)
from known_recipes known
cross join texts_to_forget text
join filter_decisions row on row.filter_recipe_id = known.recipe_id and row.document_id = text.document_id
union all
select 'candidate_calls', count(*) from calls
union all
select 'pruned_positions', count(*)
from pruned_positions row join texts_to_forget text on text.document_id = row.document_id
union all
select 'lost_samples', count(*)
from lost_samples row join texts_to_forget text on text.document_id = row.document_id
union all
select 'call_losses', count(*)
from call_losses row join texts_to_forget text on text.document_id = row.document_id
union all
select 'placebo_losses', count(*)
from placebo_losses row join texts_to_forget text on text.document_id = row.document_id
union all
select 'placebo_pool_results', count(*)
from placebo_pool_results row join texts_to_forget text on text.document_id = row.document_id
union all
select 'stage_ledger', count(*)
from known_recipes known
cross join texts_to_forget text
join stage_ledger row on row.recipe_id = known.recipe_id and row.document_id = text.document_id
union all
select 'quality_results', count(*)
from quality_results result
where not result.success
  and exists (
      select
      from regexp_matches(
          result.observed::text || result.message,
          '[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}', 'g') as found (parts)
      join names on names.name = found.parts[1]::uuid
  )
union all
select 'call_results', count(*)
from call_results result
join inputs on inputs.tool = result.tool and inputs.input_key = result.input_key
where not exists (
    select from asked_elsewhere other where other.tool = result.tool and other.input_key = result.input_key
)
