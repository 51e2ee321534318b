create view run_work as
with own as (
    select work.run_id, work.tool, work.stage, work.micro_batches, work.documents, work.rows_written,
        work.seconds
    from finished_run_work work
    join stored_runs using (run_id)
    union all
    select batch.run_id, batch.tool, batch.stage, count(*), sum(batch.documents), sum(batch.rows_written),
        sum(batch.seconds)
    from micro_batches batch
    where not exists (select from stored_runs stored where stored.run_id = batch.run_id)
    group by batch.run_id, batch.tool, batch.stage
)
select progress.run_id, progress.tool, progress.step, progress.stage,
       coalesce(own.documents, 0)::bigint as documents,
       greatest(progress.done - coalesce(own.documents, 0), 0)::bigint as documents_reused,
       coalesce(own.micro_batches, 0) as micro_batches,
       coalesce(own.rows_written, 0)::bigint as rows_written,
       coalesce(own.seconds, 0) as seconds
from annotation_progress progress
left join own using (run_id, tool, stage);
comment on view run_work is
    'What each run did itself, by tool and stage, and what it reused of earlier runs under the same '
    'recipes.';
comment on column run_work.documents_reused is
    'Documents of the run that an earlier run, or one at the same time, had finished.';
call inherit_comments('run_work', 'finished_run_progress', 'finished_run_work');
