-- Audit: the filter decisions of the next documents against their ledger rows.
with page as materialized (
    select document_id, rows_written, rows_hash
    from stage_ledger
    where stage = 'filter' and recipe_id = :recipe_id and document_id > cast(:after as uuid)
    order by document_id
    limit :page_size
),
bounds as materialized (
    select case when (select count(*) from page) = :page_size
                then (select document_id from page order by document_id desc limit 1)
                else 'ffffffff-ffff-ffff-ffff-ffffffffffff' end as until
),
written as (
    select decision.document_id, count(*) as row_count,
           string_agg(filter_row_text(decision), chr(10) order by decision.paragraph) as row_texts
    from filter_decisions decision
    where decision.filter_recipe_id = :recipe_id
      and decision.document_id > cast(:after as uuid) and decision.document_id <= (select until from bounds)
    group by decision.document_id
),
judged as (
    select document_id, page.document_id is not null as in_ledger, page.rows_written, coalesce(written.row_count, 0) as row_count,
           page.rows_hash <> rows_hash(written.row_texts) as differs
    from page
    full join written using (document_id)
),
found as (
    select case when not in_ledger or row_count < rows_written then 'lost' when row_count > rows_written then 'doubled' else 'changed' end as kind,
           case when in_ledger then 'filter_decisions' else 'stage_ledger' end as relation,
           format('filter of %s under %s', document_id, cast(:recipe_id as text)) as place,
           case when not in_ledger then format('expected a ledger row beside %s decisions, found none', row_count)
                when row_count <> rows_written then format('expected %s decisions, as the ledger says, found %s', rows_written, row_count)
                else 'expected the decisions whose hash the ledger keeps, found others' end as what,
           'Delete the document''s rows (--repair): the next run with this recipe writes them again.' as remedy,
           jsonb_build_object('action', 'rows', 'stage', 'filter', 'recipe_id', cast(:recipe_id as text), 'document_id', document_id) as repair
    from judged
    where not in_ledger or row_count <> rows_written or differs
)
select case when (select count(*) from page) = :page_size then (select cast(until as text) from bounds) end as position,
       (select count(*) from page) as items,
       (select count(*) from page where rows_hash is null) as unprovable,
       coalesce((select jsonb_agg(to_jsonb(listed)) from (select * from found limit :most_findings) listed), '[]') as found
