-- A tool may propose calls itself: then no model gave the place a probability, and no sample is the call.

alter table candidate_calls alter column position_probability drop not null;
alter table candidate_calls add column proposed_by text not null default 'model' check (proposed_by in ('model', 'tool', 'both'));
alter table candidate_calls add constraint candidate_calls_sampled_position_check
    check (position_probability is not null or proposed_by = 'tool');
alter table candidate_calls drop constraint candidate_calls_sample_count_check;
alter table candidate_calls add constraint candidate_calls_sample_count_check
    check (sample_count >= 0 and (sample_count = 0) = (proposed_by = 'tool'));
comment on table candidate_calls is
    'Calls that the language model or the tool itself proposed, one row for equal calls at one position. One partition for each '
    'sampling recipe, in which document_id and call_id are the key. Writer: stages/sampling.py.';
comment on column candidate_calls.position_probability is 'p_i, the probability that a call starts here, 0 to 1. Null at a place that the tool alone proposed: no model was asked.';
comment on column candidate_calls.call_input is 'The call''s input as it was written by who proposed it.';
comment on column candidate_calls.sample_count is 'Number of samples that are this call at this position; 0 for a call that the tool alone proposed.';
comment on column candidate_calls.proposed_by is
    'Who proposed the call. model: a model that samples, the run''s own or one behind an endpoint. tool: the tool itself. '
    'both: the tool, and a sample is the same call.';
comment on table lost_samples is
    'A bounded choice of the samples, and of the calls that tools proposed, that became no candidate call, by recipe and reason: '
    'the 50 with the smallest keys, and some that a process wrote before it saw smaller ones. The ledger counts all. '
    'Writer: stages/sampling.py.';
