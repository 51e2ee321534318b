-- Chains: a run over the texts of a release samples calls whose input holds the result of a call in its text.

alter table annotation_runs
    add column chained_release_id text references dataset_releases;
comment on column annotation_runs.chained_release_id is 'The release whose texts the run goes over, with chains; null without. Its calls are the parents of the run''s.';

alter table candidate_calls
    add column parent_call integer check (parent_call >= 0);
comment on column candidate_calls.parent_call is 'In a chain: the number, from 0, of the call of the text whose result the input holds (chained_calls names it); null elsewhere.';

create table chained_texts (
    release_id         text not null,
    document_id        uuid not null,
    source_document_id uuid not null,
    primary key (release_id, document_id)
);
create index on chained_texts (source_document_id);
comment on table chained_texts is 'Texts of a release, calls included, over which a run with chains went: what they were without calls. Writer: stages/filtering.py.';
comment on column chained_texts.release_id is 'The release.';
comment on column chained_texts.document_id is 'The text with its calls, as documents has it.';
comment on column chained_texts.source_document_id is 'The text without them: release_calls.document_id of the release.';

create or replace function call_row_text(call candidate_calls)
    returns text
    language sql stable parallel safe
    return cast(row(
        call.call_id, call.paragraph, call.position_token, call.position_char, call.position_probability, call.call_input, call.call_text,
        call.input_key, call.effective_input, call.sample_count, call.input_only_after) as text)
        || coalesce(' parent ' || call.parent_call, '');
