-- What the checks of a subject found.
select check_name, severity, success from quality_results where run_id = :run_id and subject = :subject order by check_name
