select reason, count(*) as records
from rejected_documents
where corpus_id = :corpus_id
group by reason
order by reason
