insert into checked_yields (run_id, tool, judged_calls, kept_calls, releasable_calls, kept_texts)
values (:run_id, :tool, :judged_calls, :kept_calls, :releasable_calls, :kept_texts)
on conflict (run_id, tool) do update
set judged_calls = excluded.judged_calls,
    kept_calls = excluded.kept_calls,
    releasable_calls = excluded.releasable_calls,
    kept_texts = excluded.kept_texts
