-- fail: every call id once
-- files: checked_calls
-- remedy: Compare the release with Postgres: `toolformer-ops audit --release` with its id; --repair makes its files again.
select call_id
from (select call_id, count(*) over (partition by call_id) as times from {batch}) as counted
where call_id is null or times > 1
