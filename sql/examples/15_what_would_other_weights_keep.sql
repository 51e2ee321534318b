-- What would other weights keep?
-- The five tokens after a call have the weights 5/15 to 1/15 in the paper; here each has a fifth. From the
-- log probabilities that are stored with each call, so that no model is asked. What was pruned by the paper's
-- weights is not among them. Of runs with the keep rule paper.
create function what_would_other_weights_keep(run text default '')
    returns table (
        tool text, calls bigint, kept bigint, kept_otherwise bigint, kept_by_both bigint)
    language sql stable
as $$
    with scored as (
        select t.tool, t.keep_threshold, loss.loss_reduction, loss.token_log_probabilities as terms,
            array[0.2, 0.2, 0.2, 0.2, 0.2] as weights
        from run_tools t
        cross join lateral (
            -- With a `with`, as in scored_calls, so that only the partition of the recipe is read.
            with scored as (
                select * from call_losses
                where scoring_recipe_id = t.scoring_recipe_id and reason is null
                    and token_log_probabilities is not null
            )
            select scored.*
            from scored
            join run_tool_documents member
                on member.run_id = t.run_id and member.tool = t.tool
                    and member.variant_id = scored.document_id
        ) loss
        where t.run_id = run_or_newest(run) and t.keep_rule = 'paper'
    ),
    weighted as (
        select tool, loss_reduction >= keep_threshold as kept,
               loss_reduction(
                   weighted_loss(terms, 1, weights), weighted_loss(terms, 2, weights),
                       weighted_loss(terms, 4, weights),
                   weighted_loss(terms, 3, weights)) >= keep_threshold as kept_otherwise
        from scored
    )
    select tool, count(*) as calls, count(*) filter (where kept) as kept,
        count(*) filter (where kept_otherwise) as kept_otherwise,
           count(*) filter (where kept and kept_otherwise) as kept_by_both
    from weighted
    group by tool
    order by tool
$$;
comment on function what_would_other_weights_keep is
    'What would other weights keep? About this run; an empty name is the newest run that ended well.';
