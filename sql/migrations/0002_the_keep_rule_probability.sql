-- The keep rule probability takes the place of the rule information. A run that had that rule keeps by the paper's rule from now on, and its
-- numbers are counted anew; its release stays as it was made.

-- 1. What is made anew with other names or columns.
drop function if exists is_kept cascade;
drop function if exists run_keeps cascade;
drop function if exists call_outcome cascade;
drop function if exists reduction_bucket cascade;
drop function if exists kept_calls_at cascade;
drop function if exists best_kept_calls cascade;
drop function if exists release_changes_between cascade;
drop function if exists run_comparison_between cascade;
drop function if exists counted_reductions cascade;
drop function if exists earlier_reductions cascade;
drop function if exists lacks_result cascade;

-- 2. What a call gains, and what a position may gain.
alter table pruned_positions rename column loss_without_call to gain_bound;
alter table call_losses add column probability_without double precision check (probability_without > 0 and probability_without <= 1);
alter table call_losses add column probability_with double precision check (probability_with > 0 and probability_with <= 1);
alter table call_losses add column gain_bound double precision generated always as (
    case when probability_without is null
         then least(loss_without_call, loss_without_result, loss_without_call_full_context) - coalesce(loss_with_result, 0)
         else ln(coalesce(probability_with, 1)) - ln(probability_without) end
) stored;
drop index call_losses_kept;
create index call_losses_kept on call_losses (scoring_recipe_id, gain_bound) where reason is null;

-- 3. What a placebo gains. The ledger holds the hash of each document's rows, in which the new columns take the place of the old one.
alter table placebo_losses add column probability_with double precision check (probability_with > 0 and probability_with <= 1);
alter table placebo_losses add column gain double precision check (abs(gain) < 'Infinity');
update placebo_losses set gain = reduction where is_sampled and reason is null;
alter table placebo_losses drop column placebo_information cascade;
do $$
begin
    if exists (select from placebo_losses) then  -- else the functions may not be there yet
        update stage_ledger done
        set rows_hash = rows_hash(scored.row_texts)
        from (
            select placebo_recipe_id, document_id,
                   string_agg(cast(row(call_id, number, source, is_sampled, reason, loss_with_result, reduction_bound, information) as text)
                              || coalesce(' gain ' || gain, ''), chr(10) order by call_id, number) as row_texts
            from placebo_losses
            group by placebo_recipe_id, document_id
        ) scored
        where done.stage = 'placebo' and done.recipe_id = scored.placebo_recipe_id and done.document_id = scored.document_id;
    end if;
end
$$;
alter table call_information add column probability double precision check (probability > 0 and probability <= 1);

-- 4. The rule of a run.
alter table run_tools add column keep_rule text not null default 'paper' check (keep_rule in ('paper', 'probability'));
update run_tools set registered_hash = null where tau_information is not null;
update annotation_runs set numbers_stored_at = null where run_id in (select run_id from run_tools where tau_information is not null);
do $$
declare
    proved text[];
begin
    if exists (select from annotation_runs) then
        proved := array(select run_id from annotation_runs run where registered_hash = registration_hash(run));
        update annotation_runs
        set parameters = parameters - 'tau_information'
                         || case when parameters ->> 'keep_rule' = 'information' then '{"keep_rule": "paper"}' else '{}' end::jsonb;
        update annotation_runs run set registered_hash = registration_hash(run) where run_id = any (proved);
    end if;
end
$$;
alter table run_tools drop column tau_information cascade;
alter table rounding_margins add column keep_rule text not null default 'paper' check (keep_rule in ('paper', 'probability'));
alter table rounding_margins drop constraint rounding_margins_pkey;
alter table rounding_margins add primary key (model_identity, device, number_format, keep_rule);

-- 5. Numbers of finished runs.
alter table finished_run_reductions rename to finished_run_gains;
comment on column run_tools.keep_threshold is
    'Calls are kept whose gain by keep_rule is at least this: tau_f of the tool in this run (Toolformer, '
    'section 2).';
comment on column run_tools.prune_below is
    'Gain below which calls may be missing: counts at thresholds from here on are exact. 0: nothing was '
    'pruned.';
comment on column run_tools.keep_rule is
    'What a call gains, nats. paper: the loss reduction, nats. probability: by how many nats the next '
    'tokens become more probable than without the result, or with a placebo (docs/method.md).';
comment on table rounding_margins is
    'Gains of a few hundred calls computed in a model''s number format and in float32, once for each '
    'model, device, format and keep rule; later runs use what is stored. Writer: runs/rounding.py.';
comment on column rounding_margins.mean_difference is 'Mean difference of the two gains of a call, nats.';
comment on column rounding_margins.largest_difference is 'Largest difference.';
comment on column rounding_margins.margin is
    'What is allowed for: float32 computes calls again whose gain is so near to a threshold, and nothing '
    'is pruned that is so near to prune_below.';
comment on column rounding_margins.keep_rule is 'The keep rule whose gain was measured.';
comment on table pruned_positions is
    'Positions at which no call was sampled, because the text is so easy to predict there that no call '
    'could reach prune_below. One partition for each sampling recipe. Writer: stages/sampling.py.';
comment on column pruned_positions.gain_bound is
    'The most that a call here can gain by the keep rule, with the whole text before the position. '
    'paper: L(nothing), nats, since L- is at most this and L+ at least 0. probability: minus the '
    'logarithm of the probability of the next tokens without a call.';
comment on column call_losses.token_log_probabilities is
    'Natural log probabilities of the next tokens, at most five by the keep rule paper, which the losses '
    'weight, at most ten by probability; a line for each loss: [1] without the call, [2] with the call '
    'without its result, [3] with its result, [4] without the call given the whole text, where the '
    'others are in a context window; [3][1] is that of the token directly after the call. Null elements: '
    'the loss was not computed. Null: not stored, as the run wanted .';
comment on column call_losses.scored_tokens is
    'The text of the tokens of token_log_probabilities, in their order. Null: not stored.';
comment on column call_losses.probability_without is
    'By the keep rule probability: the largest probability of the next tokens without the result, of '
    'those that were computed: without the call, with the call without its result, without the call '
    'given the whole text. The probability of the next tokens is the geometric mean of the probabilities '
    'of the first tokens of token_log_probabilities, each taken as at least 0.01; the recipe says of how '
    'many (probability_tokens). Null by the rule paper.';
comment on column call_losses.probability_with is
    'By the keep rule probability: the probability of the next tokens with the call and its result. Null '
    'by the rule paper, and where it was not computed.';
comment on column call_losses.gain_bound is
    'What the call gains by the keep rule of its recipe before its placebo, or with a reason the most '
    'that it can gain. paper: reduction_bound, nats. probability: the logarithm of probability_with / '
    'probability_without, nats.';
comment on column placebo_pools.placebos is 'K: placebos for each call whose gain reaches prune_below.';
comment on column placebo_losses.probability_with is
    'By the keep rule probability: the probability of the next tokens with the placebo. Null by the rule '
    'paper, and where it was not computed.';
comment on column placebo_losses.gain is
    'Of a sampled placebo that is scored: what the call would gain with it by the keep rule. '
    'probability: compared with the second placebo as the call''s result is with the first; null without '
    'one. Else null.';
comment on column call_information.probability is
    'By the keep rule probability: the probability of the next tokens with the first placebo, which that '
    'with the result is compared with. Null by the rule paper.';
comment on column finished_run_thresholds.calls is 'Number of scored calls with gain >= threshold.';
comment on table finished_run_gains is
    'The rows of the view gain_histogram for finished runs. Writer: runs/numbers.py.';
comment on column finished_run_gains.run_id is 'The run.';
comment on column finished_run_gains.tool is 'The tool''s name.';
comment on column finished_run_gains.bucket is
    'Gains from bucket / a to below (bucket + 1) / a, where a is buckets_a_unit of the run''s keep rule: '
    '20 a nat, or 100.';
comment on column finished_run_gains.calls is 'Calls that gain so much.';
comment on column finished_run_gains.texts is 'Texts whose best call gains so much.';
comment on column finished_run_gains.releasable_calls is
    'Of calls those whose input does not occur only after them.';
comment on column finished_run_gains.placebos is 'Sampled placebos that gain so much.';
