-- What an audit asks about the rows of the history.

-- name: unregistered
-- Documents whose calls, losses or placebos retention dropped from Postgres, and of which no file of the
-- history is registered.
select cast(done.document_id as text) as document_id
from stage_ledger done
where done.recipe_id = :recipe_id and done.stage = :stage and done.rows_written > 0
  and done.committed_at < (select dropped_at from recipes where recipe_id = :recipe_id)
  and not exists (
      select
      from history_documents written
      join history_files file using (file_key)
      where written.recipe_id = :recipe_id and written.document_id = done.document_id
          and file.state in ('whole', 'stale')
  )
order by done.document_id

-- name: candidate_calls
-- Whether the calls of each document in rows of the history differ from the hash in the ledger; null without
-- one.
select cast(call.document_id as text) as document_id,
       count(*) <> done.rows_written
       or done.rows_hash <> rows_hash(concat_ws(chr(10),
           string_agg(call_row_text(call), chr(10) order by call.call_id), pruned.row_texts)) as differs
from jsonb_populate_recordset(cast(null as candidate_calls), cast(:rows as jsonb)) call
left join stage_ledger done on done.recipe_id = :recipe_id and done.stage = 'sample'
    and done.document_id = call.document_id
left join lateral (
    select string_agg(pruned_row_text(position), chr(10)
        order by position.paragraph, position.position_token) as row_texts
    from pruned_positions position
    where position.sampling_recipe_id = :recipe_id and position.document_id = call.document_id
) pruned on true
group by call.document_id, done.rows_written, done.rows_hash, pruned.row_texts
order by call.document_id

-- name: call_losses
-- Likewise of losses, and whether the reductions are those of the losses.
select cast(loss.document_id as text) as document_id,
       count(*) <> done.rows_written
       or done.rows_hash <> rows_hash(string_agg(losses_row_text(loss), chr(10) order by loss.call_id))
       or bool_or(loss.reduction_bound is distinct from bound.reduction_bound)
       or bool_or(loss.gain_bound is distinct from case when loss.probability_without is null
           then bound.reduction_bound
                                                        else ln(coalesce(loss.probability_with,
                                                            1)) - ln(loss.probability_without) end)
       or bool_or(loss.loss_reduction is distinct from
                  case when num_nulls(loss.loss_without_call, loss.loss_without_result,
                      loss.loss_with_result) = 0 then bound.reduction_bound end) as differs
from jsonb_populate_recordset(cast(null as call_losses), cast(:rows as jsonb)) loss
cross join lateral (
    select least(loss.loss_without_call, loss.loss_without_result, loss.loss_without_call_full_context)
           - coalesce(loss.loss_with_result, 0) as reduction_bound
) bound
left join stage_ledger done on done.recipe_id = :recipe_id and done.stage = 'score'
    and done.document_id = loss.document_id
group by loss.document_id, done.rows_written, done.rows_hash
order by loss.document_id

-- name: placebo_losses
-- Likewise of placebos.
select cast(placebo.document_id as text) as document_id,
       count(*) <> done.rows_written
       or done.rows_hash <> rows_hash(string_agg(placebo_row_text(placebo), chr(10)
           order by placebo.call_id, placebo.number))
       or bool_or(placebo.reduction is distinct from case when placebo.reason is null
           then placebo.reduction_bound end) as differs
from jsonb_populate_recordset(cast(null as placebo_losses), cast(:rows as jsonb)) placebo
left join stage_ledger done on done.recipe_id = :recipe_id and done.stage = 'placebo'
    and done.document_id = placebo.document_id
group by placebo.document_id, done.rows_written, done.rows_hash
order by placebo.document_id
