-- What would other weights keep?
-- The five tokens behind a call have the weights 5/15 to 1/15 in the paper; here each has a fifth. From the log probabilities that are
-- stored with each call, so that no model is asked. What was pruned by the paper's weights is not among them.
-- About the newest run that finished; another one: toolformer-ops sql --run=night-1 ..., or psql --set=run=night-1.
\if :{?run} \else \set run '' \endif
with weighted as (
    select call.tool, call.loss_reduction >= call.keep_threshold as kept,
           least(other.without_call, other.without_result, other.without_call_full_context) - other.with_result
               >= call.keep_threshold as kept_otherwise
    from scored_calls call
    cross join lateral (
        select -sum(weight * call.token_log_probabilities[1][place]) as without_call,
               -sum(weight * call.token_log_probabilities[2][place]) as without_result,
               -sum(weight * call.token_log_probabilities[3][place]) as with_result,
               -sum(weight * call.token_log_probabilities[4][place]) as without_call_full_context
        from unnest(array[0.2, 0.2, 0.2, 0.2, 0.2]) with ordinality as weights (weight, place)
    ) other
    where call.run_id = run_or_newest(:'run') and call.token_log_probabilities is not null
)
select tool, count(*) as calls, count(*) filter (where kept) as kept, count(*) filter (where kept_otherwise) as kept_otherwise,
       count(*) filter (where kept and kept_otherwise) as kept_by_both
from weighted
group by tool
order by tool;
