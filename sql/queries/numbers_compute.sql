-- The numbers of a tool of a run, counted over all its documents by the views.
insert into finished_run_thresholds (run_id, tool, threshold, calls, texts, releasable_calls)
select run_id, tool, threshold, calls, texts, releasable_calls from threshold_counts where run_id = :run_id and tool = :tool;
insert into finished_run_progress (run_id, tool, step, stage, done, total)
select run_id, tool, step, stage, done, total from annotation_progress where run_id = :run_id and tool = :tool;
insert into finished_run_yield (run_id, tool, step, stage, reason, is_loss, count, documents)
select run_id, tool, step, stage, reason, is_loss, count, documents from yield_by_stage where run_id = :run_id and tool = :tool
