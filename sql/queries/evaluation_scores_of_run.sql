-- The scores of a run, in the order in which they came; of one that was evaluated on other inputs again only the newest.
select suite, subset, model, variant, call_start_rank, inputs, metric, score, low, high, call_shares, inputs_with_call,
       score_with_call, score_without_call, seconds, data_sha256, calendar_date
from (
    select distinct on (suite, subset, model, variant, call_start_rank, metric) *
    from evaluation_scores
    where run_id = :run_id
    order by suite, subset, model, variant, call_start_rank, metric, evaluated_at desc
) newest
order by suite, array_position(array['base', 'without_calls', 'disabled', 'with_tools'], variant), call_start_rank, subset, metric desc
