-- Scores of models on suites of questions.

-- name: insert_score
insert into evaluation_scores
    (run_id, suite, subset, model, model_id, variant, call_start_rank, metric, inputs, score, low, high,
        call_shares,
     inputs_with_call, score_with_call, score_without_call, seconds, data_sha256, calendar_date, inputs_uri,
         inputs_sha256)
values
    (:run_id, :suite, :subset, :model, :model_id, :variant, :call_start_rank, :metric, :inputs, :score, :low,
        :high, :call_shares,
     :inputs_with_call, :score_with_call, :score_without_call, :seconds, :data_sha256, :calendar_date,
         :inputs_uri, :inputs_sha256)
on conflict do nothing

-- name: scores_of_run
-- The scores of a run, in the order in which they came; of one that was evaluated on other inputs again only
-- the newest.
select suite, subset, model, variant, call_start_rank, inputs, metric, score, low, high, call_shares,
    inputs_with_call,
       score_with_call, score_without_call, seconds, data_sha256, calendar_date
from (
    select distinct on (suite, subset, model, variant, call_start_rank, metric) *
    from evaluation_scores
    where run_id = :run_id
    order by suite, subset, model, variant, call_start_rank, metric, evaluated_at desc
) newest
order by suite, array_position(array['base', 'without_calls', 'disabled', 'with_tools'], variant),
    call_start_rank, subset, metric desc

-- name: models_of_run
-- The finetuned models of a run: that which uses tools, then the baseline, if there are any.
select model.model_id, model.uri, model.manifest_sha256, model.withdrawn_at, model.definition,
    trained.without_calls
from run_models trained
join finetuned_models model on model.model_id = trained.model_id
where trained.run_id = :run_id
order by trained.without_calls

-- name: rates
-- The false-discovery rate of each tool of a run at the tool's own threshold, if it is known.
select rate.tool, rate.threshold, rate.calls, rate.false_discovery_rate, rate.rate_low, rate.rate_high,
    rate.placebos_scored
from run_tools rt
join placebo_rates rate on rate.run_id = rt.run_id and rate.tool = rt.tool
    and rate.threshold = rt.keep_threshold
where rt.run_id = :run_id and rate.false_discovery_rate is not null
order by rate.tool

-- name: known_scores
-- What of a suite is scored already in a run.
select subset, model, variant, call_start_rank, inputs, data_sha256, calendar_date
from evaluation_scores
where run_id = :run_id and suite = :suite
