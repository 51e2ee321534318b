-- What the model wrote that became no call, to look at: which prompt, budget or parser loses it.

create table lost_samples (
    sampling_recipe_id text not null,
    document_id        uuid not null,
    sample_key         uuid not null,
    paragraph          integer not null check (paragraph >= 0),
    position_char      integer not null check (position_char >= 0),
    reason             text not null,
    sample_text        text not null,
    sample_count       integer not null check (sample_count >= 1),
    primary key (sampling_recipe_id, document_id, sample_key)
);
create index lost_samples_by_key on lost_samples (sampling_recipe_id, reason, sample_key);
create index lost_samples_document_id_idx on lost_samples (document_id);

comment on table lost_samples is 'A bounded choice of the samples that became no candidate call, by recipe and reason: the 50 with the smallest keys, and some that a process wrote before it saw smaller ones. The ledger counts all. Writer: stages/sampling.py.';
comment on column lost_samples.sampling_recipe_id is 'The sampling''s recipe.';
comment on column lost_samples.document_id is 'The document.';
comment on column lost_samples.sample_key is 'Hash of recipe, place, reason and text: the choice is by it, and so does not depend on order, batches or processes.';
comment on column lost_samples.paragraph is 'The paragraph, as in filter_decisions.';
comment on column lost_samples.position_char is 'The character of documents.text before which the call would stand, from 0.';
comment on column lost_samples.reason is 'Why it is no call, as the ledger counts it: sample_without_end, sample_does_not_parse, sample_of_another_tool, sample_without_input and so on.';
comment on column lost_samples.sample_text is 'What the model wrote behind the opening bracket, up to the closing one or to max_call_tokens.';
comment on column lost_samples.sample_count is 'How many samples of the position are this text.';
