-- fail: no call of a tool that is not one of the run's
-- files: checked_calls
-- remedy: Compare the release with Postgres: `toolformer-ops audit --release` with its id; --repair makes its files again.
select call_id, tool
from {batch}
where tool not in (select tool from checked_tools)
