-- What each check of an audit looked at and found.
select done.check_name, sum(done.items)::bigint as items, sum(done.unprovable)::bigint as unprovable, sum(done.seconds) as seconds,
       (select count(*) from audit_findings found where found.audit_id = :audit_id and found.check_name = done.check_name) as findings
from audit_checks done
where done.audit_id = :audit_id
group by done.check_name
