-- Of a file and a reason, the first hundred refused records have rows, so that a broken file of millions of lines makes few; all are
-- counted. A row no longer quotes the record.

alter table corpus_files add column refused jsonb not null default '{}';
comment on column corpus_files.refused is 'Number of records that were refused when the file was read, by reason. With those that a later record with the same id replaces: rejected.';
update corpus_files file
set refused = counted.refused
from (
    select corpus_id, file_uri, jsonb_object_agg(reason, records) as refused
    from (
        select corpus_id, file_uri, reason, count(*) as records
        from rejected_documents
        where reason <> 'same_id_later'
        group by corpus_id, file_uri, reason
    ) reasons
    group by corpus_id, file_uri
) counted
where file.corpus_id = counted.corpus_id and file.file_uri = counted.file_uri;

update rejected_documents set detail = null where line > 0 and reason <> 'forgotten' and detail is not null;

comment on column corpus_files.rejected is 'Number of records that are refused; the view rejected_records counts them by reason.';
comment on column corpus_versions.rejected is 'Records that were refused; the view rejected_records says why, for the newest version.';
comment on table rejected_documents is 'Refused records of the newest version: of each file and reason the first hundred (all that were replaced by a later record with the same id; all of files read before migration 0055). The view rejected_records counts all.';
comment on column rejected_documents.line is 'The line, or the row of a Parquet file, from 1; 0 where the file as a whole is refused.';
comment on column rejected_documents.reason is 'corrupt_json, not_an_object, no_text, text_not_a_string, empty_text, invalid_utf8, lone_surrogate, line_too_long, same_id_later, forgotten, empty_file, unreadable_file, expands_too_far, not_a_file or outside_corpus (a link that leads out of the corpus folder, or to where this deployment lets nobody read).';
comment on column rejected_documents.detail is 'What was found, in at most 300 characters: place and length, not the text, unless TOOLFORMER_QUOTE_REJECTED was set. Null where the record was refused before migration 0055, or quoted a text that was forgotten.';
comment on column corpus_spare_records.why is 'duplicate: an earlier record that counts has the same text. same_id_later: a later record has the same id, which is in record_id (also a row of rejected_documents).';
