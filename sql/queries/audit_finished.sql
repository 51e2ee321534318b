-- Audit: what finished_work says of the newest version of a corpus that a recipe has finished: each document due has its ledger row.
with due as (
    select member.variant_id as document_id
    from members_beyond(:corpus_id, :version, :ordinal_limit, 0, 0, :reads_record) member
    where :stage = 'filter'
       or exists (
           select from filter_decisions decision
           where decision.filter_recipe_id = :filter_recipe_id and decision.document_id = member.variant_id and decision.kept
       )
),
found as (
    select 'lost' as kind, 'stage_ledger' as relation,
           format('%s of %s under %s', cast(:stage as text), due.document_id, cast(:recipe_id as text)) as place,
           format('expected a ledger row, since version %s of corpus %s is finished, found none', cast(:version as integer), cast(:corpus_id as text))
               as what,
           'Mark the work as unfinished (--repair): the next run with this recipe does it.' as remedy,
           jsonb_build_object('action', 'rows', 'stage', cast(:stage as text), 'recipe_id', cast(:recipe_id as text), 'document_id', due.document_id,
                              'unless', format('filter of %s under %s', due.document_id, cast(:filter_recipe_id as text))) as repair
    from due
    left join stage_ledger done
        on done.recipe_id = :recipe_id and done.document_id = due.document_id and done.stage = :stage
    where done.document_id is null
)
select cast(null as text) as position,
       (select count(*) from due) as items,
       0 as unprovable,
       coalesce((select jsonb_agg(to_jsonb(listed)) from (select * from found limit :most_findings) listed), '[]') as found
