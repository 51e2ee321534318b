-- Runs that are not finished, over this corpus or one that holds one of the texts.
select run_id
from annotation_runs
where state = 'running'
  and (corpus_id = :corpus_id
       or corpus_id in (
           select corpus_id from corpus_documents where document_id in (select document_id from texts_to_forget)
       ))
order by run_id
