-- Row to check: how much of one tool's work in one run was kept, and the bounds of the run. Calls that are never released (input only
-- after) count as kept, pruned ones as not kept. Counted are the documents that joined or left since an earlier run of the same recipe and
-- threshold whose check passed (:yield_version, :yield_ordinal; 0 and 0 where there is none), and added to what that check counted.
create temporary table checked_yield as
with changed as (
    select case when :reads_record then variant_id else document_id end as variant_id, has_joined as joined
    from differing_members(:corpus_id, :at_version, :below_ordinal, :yield_version, :yield_ordinal)
),
judged as (
    select changed.joined, loss.document_id, is_kept(loss.reason, loss.loss_reduction, :keep_threshold) as is_kept
    from changed
    join call_losses loss on loss.document_id = changed.variant_id
    where loss.scoring_recipe_id = :scoring_recipe_id
      and (loss.reason is null or loss.reason = 'pruned_below')
),
by_document as (
    select joined, document_id, count(*) as judged_calls, count(*) filter (where is_kept) as kept_calls
    from judged
    group by joined, document_id
),
counted as (
    select
        :yield_judged_calls + coalesce(sum(case when joined then judged_calls else -judged_calls end), 0) as judged_calls,
        :yield_kept_calls + coalesce(sum(case when joined then kept_calls else -kept_calls end), 0) as kept_calls,
        :yield_kept_texts + coalesce(sum(case when joined then 1 else -1 end) filter (where kept_calls > 0), 0) as kept_texts
    from by_document
)
select
    :tool as tool,
    cast(judged_calls as bigint) as judged_calls,
    cast(kept_calls as bigint) as kept_calls,
    cast(kept_texts as bigint) as kept_texts,
    cast(:min_kept_texts as bigint) as min_kept_texts,
    coalesce(cast(kept_calls as double precision) / nullif(judged_calls, 0), 0) as kept_share,
    cast(:max_kept_share as double precision) as max_kept_share
from counted
