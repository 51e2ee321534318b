-- How far a check of a subject is; no row where it was not begun.
select position, finished_at is not null as is_finished from audit_checks
where audit_id = :audit_id and check_name = :check_name and subject = :subject
