-- Audit: the losses of the next documents against their ledger rows and against their definitions, and whether the stage before is in the
-- ledger. prune_below and weights are those of the recipe; null if it has none.
with page as materialized (
    select document_id, rows_written, rows_hash
    from stage_ledger
    where stage = 'score' and recipe_id = :recipe_id and document_id > cast(:after as uuid)
    order by document_id
    limit :page_size
),
bounds as materialized (
    select case when (select count(*) from page) = :page_size
                then (select document_id from page order by document_id desc limit 1)
                else 'ffffffff-ffff-ffff-ffff-ffffffffffff' end as until
),
written as (
    select loss.document_id, count(*) as row_count,
           string_agg(losses_row_text(loss), chr(10) order by loss.call_id) as row_texts,
           count(*) filter (
               where loss.loss_reduction is distinct from loss_reduction(
                         loss.loss_without_call, loss.loss_without_result, loss.loss_without_call_full_context, loss.loss_with_result)
                  or loss.reduction_bound is distinct from
                         least(loss.loss_without_call, loss.loss_without_result, loss.loss_without_call_full_context)
                         - coalesce(loss.loss_with_result, 0)
                  -- NaN sorts above Infinity.
                  or loss.reason is null and (
                         greatest(loss.loss_without_call, loss.loss_without_result, loss.loss_with_result,
                                  loss.loss_without_call_full_context) < 'Infinity'
                         and least(loss.loss_without_call, loss.loss_without_result, loss.loss_with_result,
                                   loss.loss_without_call_full_context) >= 0
                         and num_nulls(loss.loss_without_call, loss.loss_without_result, loss.loss_with_result, loss.result) = 0) is not true
                  or loss.reason = 'pruned_below' and loss.reduction_bound >= cast(:prune_below as double precision)
                  -- The terms are stored in single precision.
                  or loss.reason is null and (
                         abs(loss.loss_without_call - weighted_loss(loss.token_log_probabilities, 1, cast(:weights as double precision[])))
                         + abs(loss.loss_without_result - weighted_loss(loss.token_log_probabilities, 2, cast(:weights as double precision[])))
                         + abs(loss.loss_with_result - weighted_loss(loss.token_log_probabilities, 3, cast(:weights as double precision[])))
                         > 1e-4 * (1 + loss.loss_without_call + loss.loss_without_result + loss.loss_with_result))) as wrong
    from call_losses loss
    where loss.scoring_recipe_id = :recipe_id
      and loss.document_id > cast(:after as uuid) and loss.document_id <= (select until from bounds)
    group by loss.document_id
),
judged as (
    select document_id, page.document_id is not null as in_ledger, page.rows_written, coalesce(written.row_count, 0) as row_count,
           page.rows_hash <> rows_hash(written.row_texts) as differs, coalesce(written.wrong, 0) as wrong,
           page.document_id is not null and not exists (
               select from stage_ledger before
               where before.recipe_id = :previous_recipe_id and before.stage = 'execute' and before.document_id = page.document_id
           ) as lacks_execute
    from page
    full join written using (document_id)
),
found as (
    select case when not in_ledger or row_count < rows_written then 'lost' when row_count > rows_written then 'doubled' else 'changed' end as kind,
           case when in_ledger then 'call_losses' else 'stage_ledger' end as relation,
           format('score of %s under %s', document_id, cast(:recipe_id as text)) as place,
           case when not in_ledger then format('expected a ledger row beside the losses of %s calls, found none', row_count)
                when row_count <> rows_written
                then format('expected the losses of %s calls, as the ledger says, found %s', rows_written, row_count)
                when differs then 'expected the losses whose hash the ledger keeps, found others'
                else format('expected finite losses that follow from their tokens'' log probabilities, and loss reductions that follow from them, found %s calls without', wrong) end as what,
           'Delete the document''s losses (--repair): the next run with this recipe computes them again.' as remedy,
           jsonb_build_object('action', 'rows', 'stage', 'score', 'recipe_id', cast(:recipe_id as text), 'document_id', document_id) as repair
    from judged
    where not in_ledger or row_count <> rows_written or differs or wrong > 0
    union all
    select 'lost', 'stage_ledger', format('execute of %s under %s', document_id, cast(:previous_recipe_id as text)),
           'expected a ledger row before that of scoring, found none',
           'Delete the document''s rows of this and the later stages (--repair): the next run with this recipe computes them again.',
           jsonb_build_object('action', 'rows', 'stage', 'execute', 'recipe_id', cast(:previous_recipe_id as text), 'document_id', document_id)
    from judged
    where lacks_execute
)
select case when (select count(*) from page) = :page_size then (select cast(until as text) from bounds) end as position,
       (select count(*) from page) as items,
       (select count(*) from page where rows_hash is null) as unprovable,
       coalesce((select jsonb_agg(to_jsonb(listed)) from (select * from found limit :most_findings) listed), '[]') as found
