-- What a run did itself; and from now on the views show its stored numbers.
insert into finished_run_work (run_id, tool, stage, micro_batches, documents, rows_written, seconds)
select run_id, tool, stage, count(*), sum(documents), sum(rows_written), sum(seconds)
from micro_batches
where run_id = :run_id
group by run_id, tool, stage;
update annotation_runs
set previous_run_id = coalesce(previous_run_id, :previous_run_id),
    numbers_stored_at = now(),
    numbers_batch_id = (select coalesce(max(batch_id), 0) from micro_batches)
where run_id = :run_id
