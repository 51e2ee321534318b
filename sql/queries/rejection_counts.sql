select reason, sum(records)::bigint as records
from rejected_records
where corpus_id = :corpus_id
group by reason
order by reason
