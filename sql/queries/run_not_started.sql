-- Nothing for a run that has started.
insert into runs_not_started (run_id, problem)
select :run_id, :problem
where not exists (select from annotation_runs where run_id = :run_id)
on conflict (run_id) do update set problem = excluded.problem, ended_at = excluded.ended_at
