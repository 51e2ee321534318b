-- fail: every text once
select document_id
from (select document_id, count(*) over (partition by document_id) as times from {batch}) as counted
where document_id is null or times > 1
