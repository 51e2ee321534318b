update audits set finished_at = now() where audit_id = :audit_id
