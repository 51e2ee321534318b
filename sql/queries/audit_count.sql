select count(*) as found, count(repaired_at) as repaired, count(repair) as repairable from audit_findings where audit_id = :audit_id
