-- What a stage wrote for a document can be proved: its ledger row keeps the hash of these rows, computed in the transaction that wrote them.
-- Writer: runs/micro_batches.py. `toolformer-ops audit` computes it again.

alter table stage_ledger add column rows_hash uuid;
comment on column stage_ledger.rows_hash is 'First 128 bits of the sha256 of the rows that the stage has for this document (functions rows_hash and *_row_text; of execute: the results of all inputs that the document asks). Null for work from before migration 0028.';

-- The texts of rows: every column that a stage writes, but for the recipe, which is the ledger row's, and the seconds that a result took.

create function filter_row_text(decision filter_decisions)
    returns text
    language sql stable parallel safe
    return cast(row(decision.paragraph, decision.start_char, decision.end_char, decision.kept, decision.reason) as text);
comment on function filter_row_text(filter_decisions) is 'A filter decision as stage_ledger.rows_hash hashes it.';

create function call_row_text(call candidate_calls)
    returns text
    language sql stable parallel safe
    return cast(row(
        call.call_id, call.paragraph, call.position_token, call.position_char, call.position_probability, call.call_input, call.call_text,
        call.input_key, call.effective_input, call.sample_count, call.input_only_after) as text);
comment on function call_row_text(candidate_calls) is 'A candidate call as stage_ledger.rows_hash hashes it.';

create function pruned_row_text(pruned pruned_positions)
    returns text
    language sql stable parallel safe
    return cast(row(
        pruned.paragraph, pruned.position_token, pruned.position_char, pruned.position_probability, pruned.loss_without_call) as text);
comment on function pruned_row_text(pruned_positions) is 'A pruned position as stage_ledger.rows_hash hashes it.';

create function result_row_text(result call_results)
    returns text
    language sql stable parallel safe
    return cast(row(result.input_key, result.input, result.results, result.reason) as text);
comment on function result_row_text(call_results) is 'A tool''s answer as stage_ledger.rows_hash hashes it.';

create function losses_row_text(loss call_losses)
    returns text
    language sql stable parallel safe
    return cast(row(
        loss.call_id, loss.result_rank, loss.result, loss.reason, loss.loss_without_call, loss.loss_without_result, loss.loss_with_result,
        loss.loss_without_call_full_context, loss.number_format) as text);
comment on function losses_row_text(call_losses) is 'A call''s losses as stage_ledger.rows_hash hashes them; generated columns follow from these.';

create function rows_hash(row_texts text)
    returns uuid
    language sql immutable parallel safe
    return cast(encode(substring(sha256(convert_to(coalesce(row_texts, ''), 'UTF8')) from 1 for 16), 'hex') as uuid);
comment on function rows_hash(text) is 'Hash of a document''s rows: their texts in the order of their keys, joined by newlines; null is no row.';
