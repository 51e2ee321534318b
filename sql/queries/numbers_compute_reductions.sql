-- The histogram of a tool of a run, counted over all its documents by the view.
insert into finished_run_reductions (run_id, tool, bucket, calls, texts, releasable_calls, placebos)
select run_id, tool, bucket, calls, texts, releasable_calls, placebos from reduction_histogram where run_id = :run_id and tool = :tool
