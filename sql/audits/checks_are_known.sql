-- fail: results of the checks that this version knows, all of a subject of one moment
-- run: doubled quality_results
-- remedy: Run the check again: `toolformer-ops stage check` (or check-release). Restore or delete the row that it does not write.
select format('%s of %s in %s', result.check_name, result.subject, result.run_id) as place,
       format('one of %s, with %s others of this subject', result.checked_at, result.of_subject - 1) as found
from (
    select result.*, run.tools,
           count(*) over (partition by run_id, subject) as of_subject,
           count(*) over (partition by run_id, subject, checked_at) as of_moment
    from quality_results result
    join annotation_runs run using (run_id)
    where run_id = any(cast(:run_ids as text[]))
) result
where case when result.subject = 'release' then result.check_name <> all(cast(:release_checks as text[]))
           when result.subject = any(result.tools) then result.check_name <> all(cast(:tool_checks as text[]))
           else true end
   or result.of_moment * 2 <= result.of_subject
   or result.of_subject = 1
