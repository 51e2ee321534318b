-- The calls that only one of the releases of two runs holds, each with its reason, in the temporary table compared_calls.
drop table if exists compared_calls;
create temporary table compared_calls on commit drop as
select * from release_changes_between(:run_id, cast(:before_run_id as text))
