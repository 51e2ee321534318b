-- What would other weights keep?
-- The five tokens behind a call have the weights 5/15 to 1/15 in the paper; here each has a fifth. From the log probabilities that are
-- stored with each call, so that no model is asked. What was pruned by the paper's weights is not among them.
create function what_would_other_weights_keep(run text default '')
    returns table (
        tool text, calls bigint, kept bigint, kept_otherwise bigint, kept_by_both bigint)
    language sql stable
as $$
    with other as materialized (
        select tool, document_id, call_id, -sum(0.2 * without_call) as without_call, -sum(0.2 * without_result) as without_result,
               -sum(0.2 * with_result) as with_result, -sum(0.2 * without_call_full_context) as without_call_full_context
        from call_tokens_of(run)
        group by tool, document_id, call_id
    ),
    scored as materialized (
        select tool, document_id, call_id, loss_reduction, keep_threshold from scored_calls_of(run)
    ),
    weighted as (
        select scored.tool, scored.loss_reduction >= scored.keep_threshold as kept,
               least(other.without_call, other.without_result, other.without_call_full_context) - other.with_result
                   >= scored.keep_threshold as kept_otherwise
        from scored
        join other using (tool, document_id, call_id)
    )
    select tool, count(*) as calls, count(*) filter (where kept) as kept, count(*) filter (where kept_otherwise) as kept_otherwise,
           count(*) filter (where kept and kept_otherwise) as kept_by_both
    from weighted
    group by tool
    order by tool
$$;
comment on function what_would_other_weights_keep is 'What would other weights keep? About this run; an empty name is the newest run that ended well.';
