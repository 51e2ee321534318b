-- Delete the numbers of a run, and of the runs over its corpus that its own must not follow from: those that come later, or (not
-- from_earlier) all. In a transaction that is rolled back.
create temporary table unproven on commit drop as
select other.run_id
from annotation_runs run
join annotation_runs other on other.corpus_id = run.corpus_id
where run.run_id = :run_id
  and (not :from_earlier
       or (other.corpus_version, other.started_at, other.run_id) >= (run.corpus_version, run.started_at, run.run_id));
update annotation_runs set numbers_stored_at = null where run_id in (select run_id from unproven) and numbers_stored_at is not null;
delete from placebo_counts where run_id in (select run_id from unproven);
delete from checked_yields where run_id in (select run_id from unproven)
