-- Runs that finished before their numbers were stored (migration 0014), over the corpus of a run, the oldest first.
select other.run_id
from annotation_runs run
join annotation_runs other on other.corpus_id = run.corpus_id
where run.run_id = :run_id and other.run_id <> run.run_id and other.state <> 'running' and other.numbers_stored_at is null
order by other.started_at, other.run_id
