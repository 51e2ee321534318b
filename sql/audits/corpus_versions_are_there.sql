-- fail: a version of a corpus that runs, finished work, members or later versions name
-- corpus: lost corpus_versions
-- remedy: Restore the row from a backup, or correct what names it.
select format('version %s of corpus %s', named.version, named.corpus_id) as place,
       'no row, and it is named by ' || string_agg(distinct named.by_what, ', ') as found
from (
    select corpus_id, corpus_version as version, 'run ' || run_id as by_what from annotation_runs
    union all
    select corpus_id, version, 'finished_work of ' || recipe_id from finished_work
    union all
    select distinct corpus_id, first_version, 'corpus_documents' from corpus_documents
    union all
    select distinct corpus_id, left_version, 'corpus_documents' from corpus_documents where left_version is not null
    union all
    select corpus_id, generate_series(1, max(version)), 'a later version' from corpus_versions group by corpus_id
) named
left join corpus_versions known using (corpus_id, version)
where known.corpus_id is null and named.corpus_id = any(cast(:corpus_ids as text[]))
group by named.corpus_id, named.version
