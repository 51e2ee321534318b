-- The newest outcome of a check replaces the one before.
insert into quality_results (run_id, subject, check_name, severity, success, observed, message)
values (:run_id, :subject, :check_name, :severity, :success, cast(:observed as jsonb), :message)
on conflict (run_id, subject, check_name) do update
set severity = excluded.severity,
    success = excluded.success,
    observed = excluded.observed,
    message = excluded.message,
    checked_at = excluded.checked_at
