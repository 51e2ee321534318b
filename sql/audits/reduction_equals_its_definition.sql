-- fail: loss_reduction = min(loss_without_call, loss_without_result, loss_without_call_full_context) - loss_with_result
-- files: checked_calls
-- remedy: Compare the release with Postgres: `toolformer-ops audit --release` with its id; --repair makes its files again.
select call_id, loss_reduction, by_definition
from (
    select
        call_id,
        loss_reduction,
        loss_reduction(
            loss_without_call, loss_without_result, loss_without_call_full_context, loss_with_result
        ) as by_definition
    from {batch}
) as computed
where loss_reduction is distinct from by_definition
