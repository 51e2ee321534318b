-- Audit: the placebos of the next documents against their ledger rows and against their definitions, and whether the stage before is in the
-- ledger. prune_below is that of the scoring's recipe; null where it has none.
with page as materialized (
    select document_id, rows_written, rows_hash
    from stage_ledger
    where stage = 'placebo' and recipe_id = :recipe_id and document_id > cast(:after as uuid)
    order by document_id
    limit :page_size
),
bounds as materialized (
    select case when (select count(*) from page) = :page_size
                then (select document_id from page order by document_id desc limit 1)
                else 'ffffffff-ffff-ffff-ffff-ffffffffffff' end as until
),
written as (
    select placebo.document_id, count(*) as row_count,
           string_agg(placebo_row_text(placebo), chr(10) order by placebo.call_id, placebo.number) as row_texts,
           count(*) filter (
               where placebo.reason is null and placebo.reduction is distinct from placebo.reduction_bound
                  or placebo.reason = 'pruned_below' and placebo.reduction_bound >= cast(:prune_below as double precision)) as wrong
    from placebo_losses placebo
    where placebo.placebo_recipe_id = :recipe_id
      and placebo.document_id > cast(:after as uuid) and placebo.document_id <= (select until from bounds)
    group by placebo.document_id
),
judged as (
    select document_id, page.document_id is not null as in_ledger, page.rows_written, coalesce(written.row_count, 0) as row_count,
           page.rows_hash <> rows_hash(written.row_texts) as differs, coalesce(written.wrong, 0) as wrong,
           page.document_id is not null and not exists (
               select from stage_ledger before
               where before.recipe_id = :previous_recipe_id and before.stage = 'score' and before.document_id = page.document_id
           ) as lacks_score
    from page
    full join written using (document_id)
),
found as (
    select case when not in_ledger or row_count < rows_written then 'lost' when row_count > rows_written then 'doubled' else 'changed' end as kind,
           case when in_ledger then 'placebo_losses' else 'stage_ledger' end as relation,
           format('placebo of %s under %s', document_id, cast(:recipe_id as text)) as place,
           case when not in_ledger then format('expected a ledger row beside %s placebos, found none', row_count)
                when row_count <> rows_written then format('expected %s placebos, as the ledger says, found %s', rows_written, row_count)
                when differs then 'expected the placebos whose hash the ledger keeps, found others'
                else format('expected placebo reductions that follow from their losses, found %s without', wrong) end as what,
           'Delete the document''s placebos (--repair): the next run with this recipe computes them again.' as remedy,
           jsonb_build_object('action', 'rows', 'stage', 'placebo', 'recipe_id', cast(:recipe_id as text), 'document_id', document_id) as repair
    from judged
    where not in_ledger or row_count <> rows_written or differs or wrong > 0
    union all
    select 'lost', 'stage_ledger', format('score of %s under %s', document_id, cast(:previous_recipe_id as text)),
           'expected a ledger row before that of placebos, found none',
           'Delete the document''s rows of this and the later stages (--repair): the next run with this recipe computes them again.',
           jsonb_build_object('action', 'rows', 'stage', 'score', 'recipe_id', cast(:previous_recipe_id as text), 'document_id', document_id)
    from judged
    where lacks_score
)
select case when (select count(*) from page) = :page_size then (select cast(until as text) from bounds) end as position,
       (select count(*) from page) as items,
       (select count(*) from page where rows_hash is null) as unprovable,
       coalesce((select jsonb_agg(to_jsonb(listed)) from (select * from found limit :most_findings) listed), '[]') as found
