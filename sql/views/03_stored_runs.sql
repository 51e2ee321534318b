create view stored_runs as
select run.run_id, run.numbers_stored_at as stored_at
from annotation_runs run
where run.numbers_stored_at is not null
  -- A run that works again after its end is being repaired; its next end stores its numbers again.
  and not exists (
      select from micro_batches batch where batch.run_id = run.run_id
          and batch.batch_id > run.numbers_batch_id
  );
comment on view stored_runs is
    'The runs whose numbers are stored: finished, and not being repaired. The other views show the stored '
    'numbers of these runs, and compute those of the others.';
comment on column stored_runs.stored_at is 'When its numbers were stored.';
call inherit_comments('stored_runs', 'run_tools');
