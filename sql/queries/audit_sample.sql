-- Audit: the candidate calls and pruned positions of the next documents against their ledger rows, the ids of the calls and of their inputs,
-- positions against texts, and whether the stage before is in the ledger.
with page as materialized (
    select document_id, rows_written, rows_hash, coalesce(cast(counts ->> 'positions_pruned_below' as bigint), 0) as pruned_written
    from stage_ledger
    where stage = 'sample' and recipe_id = :recipe_id and document_id > cast(:after as uuid)
    order by document_id
    limit :page_size
),
bounds as materialized (
    select case when (select count(*) from page) = :page_size
                then (select document_id from page order by document_id desc limit 1)
                else 'ffffffff-ffff-ffff-ffff-ffffffffffff' end as until
),
calls as (
    select call.document_id, count(*) as row_count, max(call.position_char) as last_char,
           string_agg(call_row_text(call), chr(10) order by call.call_id) as row_texts,
           count(*) filter (
               where call.call_id <> content_uuid(
                         hashed_part(:recipe_id) || hashed_part(cast(call.document_id as text)) || hashed_part(cast(call.paragraph as text))
                         || hashed_part(cast(call.position_token as text)) || hashed_part(call.call_text))
                  or call.input_key is distinct from content_uuid(hashed_part(call.effective_input))) as misnamed
    from candidate_calls call
    where call.sampling_recipe_id = :recipe_id
      and call.document_id > cast(:after as uuid) and call.document_id <= (select until from bounds)
    group by call.document_id
),
pruned as (
    select position.document_id, count(*) as row_count, max(position.position_char) as last_char,
           string_agg(pruned_row_text(position), chr(10) order by position.paragraph, position.position_token) as row_texts
    from pruned_positions position
    where position.sampling_recipe_id = :recipe_id
      and position.document_id > cast(:after as uuid) and position.document_id <= (select until from bounds)
    group by position.document_id
),
judged as (
    select document_id, page.document_id is not null as in_ledger,
           page.rows_written, coalesce(calls.row_count, 0) as row_count,
           page.pruned_written, coalesce(pruned.row_count, 0) as pruned_count,
           page.rows_hash <> rows_hash(concat_ws(chr(10), calls.row_texts, pruned.row_texts)) as differs,
           calls.misnamed > 0 as misnamed,
           greatest(calls.last_char, pruned.last_char) > char_length(document.text) as beyond,
           document.document_id is null as is_gone,
           page.document_id is not null and not exists (
               select from stage_ledger before
               where before.recipe_id = :previous_recipe_id and before.stage = 'filter' and before.document_id = page.document_id
           ) as lacks_filter
    from page
    full join calls using (document_id)
    full join pruned using (document_id)
    left join documents document using (document_id)
),
found as (
    select case when not in_ledger or row_count < rows_written or pruned_count < pruned_written then 'lost'
                when is_gone then 'orphaned'
                when row_count > rows_written or pruned_count > pruned_written then 'doubled'
                else 'changed' end as kind,
           case when not in_ledger then 'stage_ledger'
                when row_count = rows_written and pruned_count <> pruned_written then 'pruned_positions'
                else 'candidate_calls' end as relation,
           format('sample of %s under %s', document_id, cast(:recipe_id as text)) as place,
           case when not in_ledger
                then format('expected a ledger row beside %s calls and %s pruned positions, found none', row_count, pruned_count)
                when row_count <> rows_written or pruned_count <> pruned_written
                then format('expected %s calls and %s pruned positions, as the ledger says, found %s and %s',
                            rows_written, pruned_written, row_count, pruned_count)
                when is_gone then 'expected the document of these rows, found none'
                when differs then 'expected the rows whose hash the ledger keeps, found others'
                when misnamed then 'expected ids of calls and inputs that are the hashes of their content, found others'
                else 'expected positions inside the text, found one behind its end' end as what,
           'Delete the document''s rows of this and the later stages (--repair): the next run with this recipe computes them again.' as remedy,
           jsonb_build_object('action', 'rows', 'stage', 'sample', 'recipe_id', cast(:recipe_id as text), 'document_id', document_id,
                              'unless', case when beyond then cast(document_id as text) end) as repair
    from judged
    where not in_ledger or row_count <> rows_written or pruned_count <> pruned_written or differs or misnamed or beyond or is_gone
    union all
    select 'lost', 'stage_ledger', format('filter of %s under %s', document_id, cast(:previous_recipe_id as text)),
           'expected a ledger row before that of sampling, found none',
           'Delete the document''s rows of this and the later stages (--repair): the next run with this recipe computes them again.',
           jsonb_build_object('action', 'rows', 'stage', 'filter', 'recipe_id', cast(:previous_recipe_id as text), 'document_id', document_id)
    from judged
    where lacks_filter
)
select case when (select count(*) from page) = :page_size then (select cast(until as text) from bounds) end as position,
       (select count(*) from page) as items,
       (select count(*) from page where rows_hash is null) as unprovable,
       coalesce((select jsonb_agg(to_jsonb(listed)) from (select * from found limit :most_findings) listed), '[]') as found
