-- fail: every call id once
select call_id
from (select call_id, count(*) over (partition by call_id) as times from {batch}) as counted
where call_id is null or times > 1
