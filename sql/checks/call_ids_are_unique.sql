-- fail: every call id once
select call_id
from {batch}
where call_id is null
   or call_id in (select call_id from {batch} group by call_id having count(*) > 1)
