-- The newest releases that are there, with the runs that made them and how many judgements they have.
select release.release_id, release.run_id, release.uri, release.documents, release.calls, release.created_at, run.schedule, run.corpus_id,
       run.corpus_uri, exists (select from run_tools where run_tools.run_id = run.run_id) as annotates,
       (select count(*) from judgements where judgements.release_id = release.release_id) as judgements,
       (select count(distinct reviewer) from judgements where judgements.release_id = release.release_id) as reviewers
from dataset_releases release
join annotation_runs run on run.run_id = release.run_id
where release.withdrawn_at is null
order by release.created_at desc, release.release_id
limit :at_most
