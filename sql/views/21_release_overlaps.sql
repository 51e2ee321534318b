create view release_overlaps as
select shared.run_id, made.release_id, cast(shared.document_id as text) as document_id, document.url,
    shared.suite, shared.data_set, shared.question, shared.words,
       shared.shared_ngrams, shared.is_left_out, left(document.text, 200) as text_begins
from run_overlaps shared
join run_releases made on made.run_id = shared.run_id
join documents document on document.document_id = shared.document_id;
comment on view release_overlaps is
    'The texts that share words with evaluation data, with the suite, data set and question that they hold: '
    'in a run''s release (decontaminate report), or left out of it (leave_out).';
comment on column release_overlaps.text_begins is 'The first 200 characters of the text.';
call inherit_comments('release_overlaps', 'run_overlaps', 'run_releases', 'documents');
