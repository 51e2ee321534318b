-- Row to check: how much of one tool's work in one run was kept, and the bounds of the run. Calls that are never released (input only
-- after) count as kept, pruned ones as not kept.
create temporary table checked_yield as
with judged as (
    select loss.document_id, is_kept(loss.reason, loss.loss_reduction, :keep_threshold) as is_kept
    from call_losses loss
    join run_tool_documents member
        on member.run_id = :run_id and member.tool = :tool and member.variant_id = loss.document_id
    where loss.scoring_recipe_id = :scoring_recipe_id
      and (loss.reason is null or loss.reason = 'pruned_below')
)
select
    :tool as tool,
    count(*) filter (where is_kept) as kept_calls,
    count(distinct document_id) filter (where is_kept) as kept_texts,
    cast(:min_kept_texts as bigint) as min_kept_texts,
    coalesce(cast(count(*) filter (where is_kept) as double precision) / nullif(count(*), 0), 0) as kept_share,
    cast(:max_kept_share as double precision) as max_kept_share
from judged
