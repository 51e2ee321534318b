-- fail: every text once
select document_id
from {batch}
where document_id is null
   or document_id in (select document_id from {batch} group by document_id having count(*) > 1)
