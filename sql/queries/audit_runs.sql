-- Audit: runs that are said to be running, and gave no sign of life for so long.
with run as materialized (
    select annotated.run_id, annotated.numbers_stored_at is not null as has_numbers,
           greatest(
               annotated.started_at,
               (select max(committed_at) from micro_batches done where done.run_id = annotated.run_id),
               (select max(checked_at) from quality_results result where result.run_id = annotated.run_id),
               (select max(released_at) from run_releases made where made.run_id = annotated.run_id),
               (select max(published_at) from run_models made where made.run_id = annotated.run_id),
               (select max(evaluated_at) from evaluation_scores score where score.run_id = annotated.run_id)
           ) as last_sign
    from annotation_runs annotated
    where annotated.state = 'running' and annotated.run_id = any(cast(:run_ids as text[]))
),
found as (
    select 'orphaned' as kind, 'annotation_runs' as relation, run_id as place,
           format('expected a sign of life within %s hours of a run that is running, found the last at %s',
                  cast(:stuck_after_seconds as double precision) / 3600, date_trunc('second', last_sign)) as what,
           format('See in Airflow that nothing works at it; then `toolformer-ops stage finish-run --run %s --state failed`%s.', run_id,
                  case when not has_numbers then ' (--repair does that)' end)
               as remedy,
           -- One whose numbers are stored has ended: how, a person says.
           case when not has_numbers then jsonb_build_object('action', 'finish_run', 'run_id', run_id) end as repair
    from run
    where last_sign < now() - make_interval(secs => :stuck_after_seconds)
)
select cast(null as text) as position,
       cardinality(cast(:run_ids as text[])) as items,
       0 as unprovable,
       coalesce((select jsonb_agg(to_jsonb(listed)) from (select * from found limit :most_findings) listed), '[]') as found
