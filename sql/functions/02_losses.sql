-- The keep rule and what it is made of.

create or replace function loss_reduction(
    loss_without_call double precision, loss_without_result double precision, loss_without_call_full_context double precision,
    loss_with_result double precision)
    returns double precision
    language sql immutable parallel safe
    return case
        when loss_without_call is not null and loss_without_result is not null
        -- least() skips nulls: loss_without_call_full_context is null if the call was scored without a context window.
        then least(loss_without_call, loss_without_result, loss_without_call_full_context) - loss_with_result
    end;
comment on function loss_reduction is 'L- - L+, nats: the smallest loss without the result minus the loss with it. Null if one of the three losses is missing, as for a pruned call.';

create or replace function is_kept(reason text, loss_reduction double precision, keep_threshold double precision)
    returns boolean
    language sql immutable parallel safe
    return reason is null
        and loss_reduction >= keep_threshold
        and loss_reduction < 'Infinity';  -- NaN sorts above Infinity in Postgres, so this refuses both
comment on function is_kept is 'The keep rule: the call was scored (no reason against it), and its loss reduction is a finite number of at least the threshold tau_f, nats. The same as losses.is_kept in Python.';

create or replace function weighted_loss(terms real[], line integer, weights double precision[])
    returns double precision
    language sql immutable parallel safe
    return -(weights[1] * terms[line][1] + weights[2] * coalesce(terms[line][2], 0) + weights[3] * coalesce(terms[line][3], 0)
             + weights[4] * coalesce(terms[line][4], 0) + weights[5] * coalesce(terms[line][5], 0));
comment on function weighted_loss is 'The loss, nats, that a line of call_losses.token_log_probabilities gives with the five weights of its recipe; null without a first term.';

create or replace function reduction_bucket(nats double precision)
    returns integer
    language sql immutable parallel safe
    return cast(floor(least(nats, 1000000.0) * 20) as integer)
        -- The product is rounded. A bound is the number that its decimals are read as, so that a call at 0.15 is not below 0.15.
        + case
            when nats < floor(least(nats, 1000000.0) * 20) / 20 then -1
            when nats >= (floor(least(nats, 1000000.0) * 20) + 1) / 20 and nats < 1000000.0 then 1
            else 0
        end;
comment on function reduction_bucket is 'The interval of 0.05 nats that a loss reduction is in: k for k / 20 <= nats < (k + 1) / 20. Of a million nats and more: the one of a million.';

create or replace function counts_a_loss(reason text)
    returns boolean
    language sql immutable parallel safe
    return reason not in ('paragraphs', 'positions', 'samples', 'proposals', 'candidates', 'calls', 'inputs', 'executed', 'from_cache',
                          'with_result', 'scored', 'within_rounding', 'verified_in_tf32', 'verified_in_float32', 'with_placebos',
                          'without_placebos', 'placebos');
comment on function counts_a_loss is 'Whether a count of stage_ledger or micro_batches says that something was lost, and why; else it counts what is there.';

create or replace function run_keeps(
    reason text, loss_reduction double precision, keep_threshold double precision, information double precision,
    tau_information double precision)
    returns boolean
    language sql immutable parallel safe
    return is_kept(reason, loss_reduction, keep_threshold)
        and (tau_information is null or coalesce(information >= tau_information, false));
comment on function run_keeps is 'The keep rule of a run: is_kept, and a result whose information (call_information; null without placebos) is at least tau_information, nats, if the run asks for that.';

create or replace function call_outcome(
    is_scored boolean, not_scored_for text, loss_reduction double precision, keep_threshold double precision,
    information double precision, tau_information double precision)
    returns text
    language sql immutable parallel safe
    return case
        when not is_scored then 'sampled'
        when not_scored_for = 'pruned_below' then 'pruned'
        when not_scored_for = 'loss_not_finite' then 'not_finite'
        when not_scored_for is not null then 'no_result'
        when is_kept(null, loss_reduction, keep_threshold) is not true then 'below_threshold'
        when not run_keeps(null, loss_reduction, keep_threshold, information, tau_information) then 'below_tau_information'
        else 'kept'
    end;
comment on function call_outcome is 'What happened to a candidate call before the release: candidates.outcome.';
