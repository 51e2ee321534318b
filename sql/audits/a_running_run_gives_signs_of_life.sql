-- fail: a sign of life within 72 hours of a run that is running
-- run: orphaned annotation_runs
-- remedy: See in Airflow that nothing works at it; then `toolformer-ops stage finish-run --state failed` (--repair does that unless its numbers are stored).
select run_id as place, format('the last at %s', date_trunc('second', last_sign)) as found,
       -- One whose numbers are stored has ended: how, a person says.
       case when numbers_stored_at is null then jsonb_build_object('action', 'finish_run', 'run_id', run_id) end as repair
from (
    select run.run_id, run.numbers_stored_at,
           greatest(
               run.started_at,
               (select max(committed_at) from micro_batches done where done.run_id = run.run_id),
               (select max(checked_at) from quality_results result where result.run_id = run.run_id),
               (select max(released_at) from run_releases made where made.run_id = run.run_id),
               (select max(published_at) from run_models made where made.run_id = run.run_id),
               (select max(evaluated_at) from evaluation_scores score where score.run_id = run.run_id)
           ) as last_sign
    from annotation_runs run
    where run.state = 'running' and run.run_id = any(cast(:run_ids as text[]))
) run
-- A finetuning may take 48 hours.
where last_sign < now() - interval '72 hours'
