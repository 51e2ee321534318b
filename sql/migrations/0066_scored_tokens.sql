-- The tokens that a call's losses weight, beside their log probabilities: only the model's tokenizer knows where they end.

alter table call_losses add column scored_tokens text[];
comment on column call_losses.scored_tokens is 'The text of the at most five tokens that the losses weight, in the order of token_log_probabilities. Null: not stored.';

-- Rows without them keep their hash.
create or replace function losses_row_text(loss call_losses)
    returns text
    language sql stable parallel safe
    return cast(row(
        loss.call_id, loss.result_rank, loss.result, loss.reason, loss.loss_without_call, loss.loss_without_result, loss.loss_with_result,
        loss.loss_without_call_full_context, loss.number_format) as text)
        || coalesce(cast(loss.token_log_probabilities as text), '') || coalesce(cast(loss.scored_tokens as text), '');
