-- fail: finite losses of at least 0 nats for every scored call
-- files: checked_calls
-- remedy: Compare the release with Postgres: `toolformer-ops audit --release` with its id; --repair makes its files again.
-- NaN sorts above Infinity in Postgres, so that each comparison refuses both.
select call_id, loss_without_call, loss_without_result, loss_with_result
from {batch}
where (loss_without_call >= 0 and loss_without_call < 'Infinity') is not true
   or (loss_without_result >= 0 and loss_without_result < 'Infinity') is not true
   or (loss_with_result >= 0 and loss_with_result < 'Infinity') is not true
