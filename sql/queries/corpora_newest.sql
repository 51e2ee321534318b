-- The corpora with their newest version and their runs' schedules, which say who may see them; the one that changed last first.
select corpus.corpus_id, corpus.uri, newest.version, newest.documents, newest.made_at, runs.runs, runs.schedules
from corpora corpus
cross join lateral (
    select version, documents, made_at from corpus_versions where corpus_id = corpus.corpus_id order by version desc limit 1
) newest
cross join lateral (
    select count(*) as runs,
           coalesce(jsonb_agg(distinct jsonb_build_object(
               'schedule', run.schedule,
               'annotates', exists (select from run_tools where run_tools.run_id = run.run_id))), '[]') as schedules
    from annotation_runs run
    where run.corpus_id = corpus.corpus_id
) runs
order by newest.made_at desc, corpus.corpus_id
limit :at_most
