-- fail: at least one call in every text
select document_id, call_count
from {batch}
where call_count < 1
