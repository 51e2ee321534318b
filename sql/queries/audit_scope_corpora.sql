-- The corpora of a scope.
select corpus_id, uri from corpora
where :scope = 'all'
   or (:scope = 'corpus' and corpus_id = :scope_id)
   or (:scope = 'run' and corpus_id in (select run.corpus_id from annotation_runs run where run.run_id = :scope_id))
order by corpus_id
