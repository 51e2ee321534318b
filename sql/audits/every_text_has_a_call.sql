-- fail: at least one call in every text
-- files: checked_texts
-- remedy: Compare the release with Postgres: `toolformer-ops audit --release` with its id; --repair makes its files again.
select document_id, call_count
from {batch}
where call_count < 1
