-- fail: position probabilities in [0, 1]
-- files: checked_calls
-- remedy: Compare the release with Postgres: `toolformer-ops audit --release` with its id; --repair makes its files again.
select call_id, position_probability
from {batch}
where (position_probability between 0 and 1) is not true
