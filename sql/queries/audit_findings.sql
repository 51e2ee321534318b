-- The findings of an audit after a number, in the order in which they were found.
select finding_id, check_name, kind, relation, place, what, remedy, repair, repaired_at is not null as is_repaired
from audit_findings
where audit_id = :audit_id and finding_id > :after
order by finding_id
limit :page_size
