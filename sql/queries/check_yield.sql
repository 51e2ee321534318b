-- How much of one tool's work in one run was kept: one row. Calls that are never released (input only after) count as
-- kept, pruned ones as not kept.
select * from (
with judged as (
    select
        loss.document_id,
        is_kept(
            loss.reason, loss.loss_reduction, cast(current_setting('toolformer.keep_threshold') as double precision)
        ) as is_kept
    from call_losses loss
    join run_documents member on member.document_id = loss.document_id
    where loss.scoring_recipe_id = current_setting('toolformer.scoring_recipe_id')
      and member.run_id = current_setting('toolformer.run_id')
      and (loss.reason is null or loss.reason = 'pruned_below')
)
select
    current_setting('toolformer.tool') as tool,
    count(*) as scored_calls,
    count(*) filter (where is_kept) as kept_calls,
    count(distinct document_id) filter (where is_kept) as kept_texts,
    coalesce(cast(count(*) filter (where is_kept) as double precision) / nullif(count(*), 0), 0) as kept_share
from judged
) as yield
