-- The keep rule and what it is made of.

create or replace function loss_reduction(
    loss_without_call double precision, loss_without_result double precision,
        loss_without_call_full_context double precision,
    loss_with_result double precision)
    returns double precision
    language sql immutable parallel safe
    return case
        when loss_without_call is not null and loss_without_result is not null
        -- least() skips nulls: loss_without_call_full_context is null if the call was scored without a
        -- context window.
        then least(loss_without_call, loss_without_result, loss_without_call_full_context) - loss_with_result
    end;
comment on function loss_reduction is
    'L- - L+, nats: the smallest loss without the result minus the loss with it. Null if one of the '
    'three losses is missing, as for a pruned call.';

create or replace function is_kept(reason text, gain double precision, keep_threshold double precision)
    returns boolean
    language sql immutable parallel safe
    return reason is null
        and gain >= keep_threshold
        and gain < 'Infinity';  -- NaN sorts above Infinity in Postgres, so this refuses both
comment on function is_kept is
    'Whether a call was scored (no reason against it), and its gain is a finite number of at least the '
    'threshold tau_f, in the unit of the keep rule. The same as losses.is_kept in Python.';

create or replace function call_gain(gain_bound double precision, probability_with double precision,
    placebo_probability double precision)
    returns double precision
    language sql immutable parallel safe
    return case
        when probability_with is null then gain_bound
        when placebo_probability is not null
            then least(gain_bound, ln(probability_with / placebo_probability))
    end;
comment on function call_gain is
    'What a scored call gains by its keep rule. paper (no probability): its loss reduction, nats. '
    'probability: the logarithm of the probability of the next tokens with its result, divided by the '
    'largest one without it, that with its placebo among them (call_information.probability), nats; null '
    'without a placebo. The same as placebo.gain_of in Python.';

create or replace function next_tokens_probability(terms real[], line integer, tokens integer)
    returns double precision
    language sql immutable parallel safe
    return (select exp(avg(greatest(cast(log_probability as double precision), ln(0.01::double precision))))
            from unnest(terms[line:line][:tokens]) log_probability);
comment on function next_tokens_probability is
    'The probability of the next tokens that a line of call_losses.token_log_probabilities gives: the '
    'geometric mean of the probabilities of its first tokens, so many or as many as there are, each '
    'taken as at least 0.01. Null for a line that was not computed.';

create or replace function weighted_loss(terms real[], line integer, weights double precision[])
    returns double precision
    language sql immutable parallel safe
    return -(weights[1] * terms[line][1] + weights[2] * coalesce(terms[line][2],
        0) + weights[3] * coalesce(terms[line][3], 0)
             + weights[4] * coalesce(terms[line][4], 0) + weights[5] * coalesce(terms[line][5], 0));
comment on function weighted_loss is
    'The loss, nats, that a line of call_losses.token_log_probabilities gives with the five weights of '
    'its recipe; null without a first term.';

create or replace function buckets_a_unit(keep_rule text)
    returns integer
    language sql immutable parallel safe
    return case keep_rule when 'paper' then 20 else 100 end;
comment on function buckets_a_unit is 'Into how many intervals a histogram divides a nat.';

create or replace function gain_bucket(gain double precision, a_unit integer)
    returns integer
    language sql immutable parallel safe
    return cast(floor(least(gain, 1000000.0) * a_unit) as integer)
        -- The product is rounded. A bound is the number that its decimals are read as, so that a call at 0.15
        -- is not below 0.15.
        + case
            when gain < floor(least(gain, 1000000.0) * a_unit) / a_unit then -1
            when gain >= (floor(least(gain, 1000000.0) * a_unit) + 1) / a_unit and gain < 1000000.0 then 1
            else 0
        end;
comment on function gain_bucket is
    'The interval that a gain is in: k for k / a_unit <= gain < (k + 1) / a_unit. Of a million and more: '
    'the one of a million.';

create or replace function counts_a_loss(reason text)
    returns boolean
    language sql immutable parallel safe
    return reason not in ('paragraphs', 'positions', 'samples', 'proposals', 'candidates', 'calls', 'inputs',
        'executed', 'from_cache',
                          'with_result', 'scored', 'within_rounding', 'verified_in_tf32',
                              'verified_in_float32', 'with_placebos',
                          'without_placebos', 'placebos');
comment on function counts_a_loss is
    'Whether a count of stage_ledger or micro_batches says that something was lost, and why; else it '
    'counts what is there.';

create or replace function run_keeps(
    reason text, gain_bound double precision, keep_threshold double precision,
        probability_with double precision,
    placebo_probability double precision)
    returns boolean
    language sql immutable parallel safe
    return is_kept(reason, gain_bound, keep_threshold)  -- an index finds these
        and (probability_with is null or coalesce(ln(probability_with / placebo_probability) >= keep_threshold, false));
comment on function run_keeps is 'The keep rule of a run: is_kept of call_gain.';

create or replace function call_outcome(
    is_scored boolean, not_scored_for text, gain_bound double precision, keep_threshold double precision,
    probability_with double precision, placebo_probability double precision)
    returns text
    language sql immutable parallel safe
    return case
        when not is_scored then 'sampled'
        when not_scored_for = 'pruned_below' then 'pruned'
        when not_scored_for = 'loss_not_finite' then 'not_finite'
        when not_scored_for is not null then 'no_result'
        when is_kept(null, gain_bound, keep_threshold) is not true then 'below_threshold'
        when not run_keeps(null, gain_bound, keep_threshold, probability_with, placebo_probability)
            then 'like_a_placebo'
        else 'kept'
    end;
comment on function call_outcome is
    'What happened to a candidate call before the release: candidates.outcome.';
