-- The run that a run is compared with: the one stored when it finished; before that, the newest successful one before it over the same
-- corpus, of the same schedule, or for a run by hand of the same model.
select coalesce(
    run.previous_run_id,
    case when run.numbers_stored_at is null then (
        select earlier.run_id
        from annotation_runs earlier
        where earlier.corpus_id = run.corpus_id
          and earlier.state = 'success'
          and (earlier.started_at, earlier.run_id) < (run.started_at, run.run_id)
          and case when run.schedule is null then earlier.model_identity = run.model_identity else earlier.schedule = run.schedule end
          and exists (select from run_tools where run_tools.run_id = earlier.run_id)  -- it annotated, and did not only finetune
        order by earlier.started_at desc, earlier.finished_at desc
        limit 1
    ) end) as run_id
from annotation_runs run
where run.run_id = :run_id
