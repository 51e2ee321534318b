-- The runs of a run's schedule that ended without success since the run before it.
select failed.run_id
from annotation_runs run
join annotation_runs failed
    on failed.schedule = run.schedule and failed.corpus_id = run.corpus_id and failed.run_id <> run.run_id
left join annotation_runs before on before.run_id = cast(:before_run_id as text)
where run.run_id = :run_id
  and failed.state <> 'success'
  and failed.started_at <= run.started_at
  and (before.run_id is null or failed.started_at >= before.started_at)
order by failed.started_at
