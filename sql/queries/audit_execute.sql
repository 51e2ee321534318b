-- Audit: the results of all inputs that the next documents ask, against their ledger rows, and whether the stage before is in the ledger.
with page as materialized (
    select document_id, rows_hash
    from stage_ledger
    where stage = 'execute' and recipe_id = :recipe_id and document_id > cast(:after as uuid)
    order by document_id
    limit :page_size
),
bounds as materialized (
    select case when (select count(*) from page) = :page_size
                then (select document_id from page order by document_id desc limit 1)
                else 'ffffffff-ffff-ffff-ffff-ffffffffffff' end as until
),
asked as (
    select distinct call.document_id, call.input_key
    from candidate_calls call
    where call.sampling_recipe_id = :sampling_recipe_id
      and call.input_key is not null
      and call.document_id > cast(:after as uuid) and call.document_id <= (select until from bounds)
),
answered as (
    select asked.document_id, count(*) as inputs, count(answer.row_text) as answers,
           string_agg(answer.row_text, chr(10) order by asked.input_key) as row_texts,
           bool_or(answer.misnamed) as misnamed
    from asked
    left join lateral (
        select result_row_text(result) as row_text, result.input_key <> content_uuid(hashed_part(result.input)) as misnamed
        from call_results result
        where result.tool = :tool and result.tool_version = :tool_version and result.input_key = asked.input_key
        limit 1  -- by its key
    ) answer on true
    group by asked.document_id
),
judged as (
    select page.document_id, coalesce(answered.inputs, 0) as inputs, coalesce(answered.answers, 0) as answers,
           page.rows_hash <> rows_hash(answered.row_texts) as differs,
           coalesce(answered.misnamed, false) as misnamed,
           -- Calls that are lost or changed ask for other inputs: that is found in the stage before.
           exists (
               select from stage_ledger before
               where before.recipe_id = :sampling_recipe_id and before.stage = 'sample' and before.document_id = page.document_id
           ) as has_sample
    from page
    left join answered using (document_id)
),
found as (
    select case when answers < inputs then 'lost' else 'changed' end as kind, 'call_results' as relation,
           format('execute of %s under %s', document_id, cast(:recipe_id as text)) as place,
           case when answers < inputs then format('expected results of %s inputs of %s, found %s', inputs, cast(:tool as text), answers)
                when differs then 'expected the results whose hash the ledger keeps, found others'
                else 'expected ids of inputs that are the hashes of their content, found others' end as what,
           'Delete the results and what follows from them (--repair): the next run with this recipe asks the tool again.' as remedy,
           jsonb_build_object('action', 'rows', 'stage', 'execute', 'recipe_id', cast(:recipe_id as text), 'document_id', document_id,
                              'unless', format('sample of %s under %s', document_id, cast(:sampling_recipe_id as text))) as repair
    from judged
    where has_sample and (answers < inputs or differs or misnamed)
    union all
    select 'lost', 'stage_ledger', format('sample of %s under %s', document_id, cast(:sampling_recipe_id as text)),
           'expected a ledger row before that of execution, found none',
           'Delete the document''s rows of this and the later stages (--repair): the next run with this recipe computes them again.',
           jsonb_build_object('action', 'rows', 'stage', 'sample', 'recipe_id', cast(:sampling_recipe_id as text), 'document_id', document_id)
    from judged
    where not has_sample
)
select case when (select count(*) from page) = :page_size then (select cast(until as text) from bounds) end as position,
       (select count(*) from page) as items,
       (select count(*) from page where rows_hash is null) as unprovable,
       coalesce((select jsonb_agg(to_jsonb(listed)) from (select * from found limit :most_findings) listed), '[]') as found
