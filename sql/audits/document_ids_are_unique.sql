-- fail: every text once
-- files: checked_texts
-- remedy: Compare the release with Postgres: `toolformer-ops audit --release` with its id; --repair makes its files again.
select document_id
from (select document_id, count(*) over (partition by document_id) as times from {batch}) as counted
where document_id is null or times > 1
