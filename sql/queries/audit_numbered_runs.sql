-- Finished runs whose stored numbers can be counted again: all of their documents were done, and nothing was deleted since. Each behind
-- those that its numbers may follow from.
select run.run_id
from annotation_runs run
join stored_runs stored using (run_id)
where run.run_id = any(cast(:run_ids as text[]))
  and exists (select from run_tools tool where tool.run_id = run.run_id)
  and not exists (select from run_tools rt where rt.run_id = run.run_id and waits_for_work(rt, stored.stored_at))
  and not exists (select from finished_run_progress where finished_run_progress.run_id = run.run_id and done <> total)
  and not exists (select from forgotten_documents where coalesce(removed_at, 'infinity') >= stored.stored_at)
  and not exists (select from run_releases made where made.run_id = run.run_id and made.released_at > stored.stored_at)
order by run.corpus_id, run.corpus_version, run.started_at, run.run_id
