update audit_findings set repaired_at = now() where finding_id = any(cast(:finding_ids as bigint[]))
