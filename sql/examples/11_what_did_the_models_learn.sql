-- What did the models learn?
-- A row for each data set: the share of right answers (or the perplexity) of the language model,
-- of the one finetuned without calls, and of the one finetuned with calls, with tools disabled and with
-- tools.
create function what_did_the_models_learn(run text default '')
    returns table (
        suite text, subset text, metric text, inputs integer, base double precision,
            without_calls double precision,
        disabled double precision, with_tools double precision, percent_with_call double precision)
    language sql stable
as $$
    with chosen as (
        select run_id
        from evaluation_scores
        where named_run(run) = '' or run_id = run_or_newest(run)
        group by run_id
        order by max(evaluated_at) desc limit 1
    ),
    latest as (
        select distinct on (suite, subset, metric, variant, call_start_rank) s.*
        from evaluation_scores s
        join chosen using (run_id)
        order by suite, subset, metric, variant, call_start_rank, evaluated_at desc
    )
    select suite, subset, metric, max(inputs) as inputs,
           round(max(score) filter (where variant = 'base')::numeric, 3) as base,
           round(max(score) filter (where variant = 'without_calls')::numeric, 3) as without_calls,
           round(max(score) filter (where variant = 'disabled')::numeric, 3) as disabled,
           round(max(score) filter (where variant = 'with_tools')::numeric, 3) as with_tools,
           round(100 * max(inputs_with_call) / max(inputs)) as percent_with_call
    from latest
    group by suite, subset, metric
    order by suite, subset, metric
$$;
comment on function what_did_the_models_learn is
    'What did the models learn? About this run; an empty name is the run that was evaluated last.';
