-- The newest runs that annotate, of these DAGs, for the choice of one.
with listed as (
    select run.run_id, run.state, run.started_at, run.corpus_uri, coalesce('nightly_' || run.schedule, 'annotate_corpus') as dag_id
    from annotation_runs run
    where exists (select from run_tools where run_tools.run_id = run.run_id)
)
select run_id, state, started_at, corpus_uri, dag_id
from listed
where dag_id = any (cast(:dag_ids as text[]))
order by started_at desc, run_id
limit 50
