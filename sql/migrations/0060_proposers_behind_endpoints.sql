-- Calls may be proposed by a model behind an OpenAI-compatible server: what it is, and what it has answered.

create table proposer_endpoints (
    proposer   text primary key,
    model      text not null,
    api        text not null check (api in ('completions', 'chat')),
    licence    text not null,
    parameters jsonb not null
);
comment on table proposer_endpoints is 'Models behind OpenAI-compatible servers that propose calls. Writer: stages/run_setup.py.';
comment on column proposer_endpoints.proposer is 'Its identity, as sampling recipes name it: the model''s name with a hash of how it is asked. The address is not part of it.';
comment on column proposer_endpoints.model is 'The model, as its server calls it.';
comment on column proposer_endpoints.api is 'completions: it continues the tool''s prompt at a place; chat: it answers the prompt with the text and calls in it.';
comment on column proposer_endpoints.licence is 'Under which its answers may be used, as the newest run was told.';
comment on column proposer_endpoints.parameters is 'Samples a request, and further fields of each request.';

create table proposer_answers (
    request_key uuid primary key,
    proposer    text not null references proposer_endpoints,
    document_id uuid not null references documents,
    reply       jsonb not null,
    answered_at timestamptz not null default now()
);
create index on proposer_answers (document_id);
comment on table proposer_answers is 'What models behind endpoints have answered, by the content of the request: a restart and a later run ask nothing again. Written as answers come; of a request that is asked twice the first answer stays. Writer: language_model/endpoint/stored_answers.py.';
comment on column proposer_answers.request_key is 'Hash of the proposer, the request and the number of its sample.';
comment on column proposer_answers.proposer is 'Whom it was asked.';
comment on column proposer_answers.document_id is 'The document whose text the request holds.';
comment on column proposer_answers.reply is 'writings: each sample''s text, and whether it ended by itself; reason: why there are none, else empty.';
comment on column proposer_answers.answered_at is 'When the answer came.';
