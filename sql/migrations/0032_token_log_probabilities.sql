-- The terms of a call's losses are stored beside them, so that a call is explained, and weighted otherwise, without its model.
-- Writer: stages/scoring.py.

alter table call_losses add column token_log_probabilities real[];
comment on column call_losses.token_log_probabilities is 'Natural log probabilities of the at most five tokens that the losses weight, a line for each loss: [1] without the call, [2] with the call without its result, [3] with its result, [4] without the call given the whole text, where the others are in a context window; [3][1] is that of the token directly after the call. Null elements: the loss was not computed. Null: not stored, as the run wanted or from before migration 0032.';

-- Rows without them keep their hash.
create or replace function losses_row_text(loss call_losses)
    returns text
    language sql stable parallel safe
    return cast(row(
        loss.call_id, loss.result_rank, loss.result, loss.reason, loss.loss_without_call, loss.loss_without_result, loss.loss_with_result,
        loss.loss_without_call_full_context, loss.number_format) as text)
        || coalesce(cast(loss.token_log_probabilities as text), '');
