create view run_documents as
select r.run_id, d.document_id, d.ordinal
from annotation_runs r
join corpus_documents d on d.corpus_id = r.corpus_id and d.ordinal < coalesce(r.document_limit, 2147483647);
comment on view run_documents is 'The documents of each run: those of its corpus up to its document limit.';
comment on column run_documents.run_id is 'The run.';
comment on column run_documents.document_id is 'The document.';
comment on column run_documents.ordinal is 'Its place in the corpus, from 0.';
