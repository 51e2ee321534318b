-- What did the quality checks find?
-- The checks of a run that did not succeed; "fail" stopped the tool or the release, "warn" did not.
create function what_did_the_checks_find(run text default '')
    returns table (
        subject text, check_name text, severity text, message text, observed jsonb)
    language sql stable
as $$
    select subject, check_name, severity, message, observed
    from quality_results
    where run_id = run_or_newest(run)
      and not success
    order by severity, subject, check_name
$$;
comment on function what_did_the_checks_find is
    'What did the quality checks find? About this run; an empty name is the newest run that ended well.';
