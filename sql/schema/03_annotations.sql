-- What the stages write: decisions, calls, results, losses. Partitioned by recipe, so that a run reads its own alone.

create table filter_decisions (
    filter_recipe_id text not null,
    document_id      uuid not null,
    paragraph        integer not null check (paragraph >= 0),
    start_char       integer not null check (start_char >= 0),
    end_char         integer not null,
    kept             boolean not null,
    reason           text,
    check (end_char >= start_char),
    check (kept or reason is not null)
) partition by list (filter_recipe_id);
comment on table filter_decisions is 'The tools'' heuristics (Toolformer, appendix A): one row a paragraph, or one a document. One partition for each filter recipe, in which document_id and paragraph are the key. Writer: stages/filtering.py.';
comment on column filter_decisions.filter_recipe_id is 'The filter''s recipe.';
comment on column filter_decisions.document_id is 'The document.';
comment on column filter_decisions.paragraph is 'The paragraph''s number in the document, from 0; 0 where the tool judges whole documents.';
comment on column filter_decisions.start_char is 'Where the paragraph starts in documents.text, characters from 0.';
comment on column filter_decisions.end_char is 'Where it ends, exclusive.';
comment on column filter_decisions.kept is 'Whether calls are sampled for it.';
comment on column filter_decisions.reason is 'Why it was kept or not, such as fewer_than_3_numbers; always given where it was not.';

create table candidate_calls (
    sampling_recipe_id   text not null,
    call_id              uuid not null,
    document_id          uuid not null,
    paragraph            integer not null check (paragraph >= 0),
    position_token       integer not null check (position_token >= 0),
    position_char        integer not null check (position_char >= 0),
    position_probability double precision not null check (position_probability >= 0 and position_probability <= 1),
    call_input           text not null,
    call_text            text not null,
    input_key            uuid,
    effective_input      text,
    sample_count         integer not null check (sample_count >= 1),
    input_only_after     boolean not null,
    parent_call          integer check (parent_call >= 0),
    check ((input_key is null) = (effective_input is null))
) partition by list (sampling_recipe_id);
alter table candidate_calls alter column call_id set (n_distinct = 4, n_distinct_inherited = 4);
comment on table candidate_calls is 'Calls that the language model proposed, one row for equal calls at one position. One partition for each sampling recipe, in which document_id and call_id are the key. Writer: stages/sampling.py.';
comment on column candidate_calls.sampling_recipe_id is 'The sampling''s recipe.';
comment on column candidate_calls.call_id is 'First 128 bits of a sha256 over the recipe, what the tool reads (the text; its record, if the tool reads url and date), place and call.';
comment on column candidate_calls.document_id is 'The document.';
comment on column candidate_calls.paragraph is 'The paragraph, as in filter_decisions.';
comment on column candidate_calls.position_token is 'The token before which the call is inserted, from 0, in the tokens of the document.';
comment on column candidate_calls.position_char is 'The character of documents.text before which the call is inserted, from 0: the start of a word with its leading space.';
comment on column candidate_calls.position_probability is 'p_i, the probability that a call starts here, 0 to 1.';
comment on column candidate_calls.call_input is 'The call''s input as the model wrote it.';
comment on column candidate_calls.call_text is 'The call as it is written into the text, such as Calculator(400 / 1400).';
comment on column candidate_calls.input_key is 'First 128 bits of a sha256 over effective_input: with tool and version the key of call_results. Null where effective_input is.';
comment on column candidate_calls.effective_input is 'The input that the tool receives: call_input in its normal form; for Calendar the date of the document. Null where the document cannot answer such a call.';
comment on column candidate_calls.sample_count is 'Number of samples that are this call at this position.';
comment on column candidate_calls.input_only_after is 'Whether the input occurs in the text only after the call, not before it: such a call is scored and never released.';
comment on column candidate_calls.parent_call is 'In a chain: the number, from 0, of the call of the text whose result the input holds (chained_calls names it); null elsewhere.';

create table pruned_positions (
    sampling_recipe_id   text,
    document_id          uuid,
    paragraph            integer check (paragraph >= 0),
    position_token       integer check (position_token >= 0),
    position_char        integer not null check (position_char >= 0),
    position_probability double precision not null check (position_probability >= 0 and position_probability <= 1),
    loss_without_call    double precision not null check (loss_without_call >= 0 and loss_without_call < 'Infinity'),
    primary key (sampling_recipe_id, document_id, paragraph, position_token)
) partition by list (sampling_recipe_id);
create index on pruned_positions (document_id);
comment on table pruned_positions is 'Positions at which no call was sampled, because the loss without a call is so low there that no call could reach prune_below. One partition for each sampling recipe. Writer: stages/sampling.py.';
comment on column pruned_positions.sampling_recipe_id is 'The sampling''s recipe.';
comment on column pruned_positions.document_id is 'The document.';
comment on column pruned_positions.paragraph is 'The paragraph, as in filter_decisions.';
comment on column pruned_positions.position_token is 'The token before which a call would stand, from 0, in the tokens of the document.';
comment on column pruned_positions.position_char is 'The character of documents.text before which a call would stand, from 0.';
comment on column pruned_positions.position_probability is 'p_i, the probability that a call starts here, 0 to 1.';
comment on column pruned_positions.loss_without_call is 'L(nothing), nats, with the whole text before the position: no call here can save more, since L- is at most this and L+ at least 0.';

create table lost_samples (
    sampling_recipe_id text,
    document_id        uuid,
    sample_key         uuid,
    paragraph          integer not null check (paragraph >= 0),
    position_char      integer not null check (position_char >= 0),
    reason             text not null,
    sample_text        text not null,
    sample_count       integer not null check (sample_count >= 1),
    primary key (sampling_recipe_id, document_id, sample_key)
);
create index lost_samples_by_key on lost_samples (sampling_recipe_id, reason, sample_key);
create index on lost_samples (document_id);
comment on table lost_samples is 'A bounded choice of the samples that became no candidate call, by recipe and reason: the 50 with the smallest keys, and some that a process wrote before it saw smaller ones. The ledger counts all. Writer: stages/sampling.py.';
comment on column lost_samples.sampling_recipe_id is 'The sampling''s recipe.';
comment on column lost_samples.document_id is 'The document.';
comment on column lost_samples.sample_key is 'Hash of recipe, place, reason and text: the choice is by it, and so does not depend on order, batches or processes.';
comment on column lost_samples.paragraph is 'The paragraph, as in filter_decisions.';
comment on column lost_samples.position_char is 'The character of documents.text before which the call would stand, from 0.';
comment on column lost_samples.reason is 'Why it is no call, as the ledger counts it: sample_without_end, sample_does_not_parse, sample_of_another_tool, sample_without_input and so on.';
comment on column lost_samples.sample_text is 'What the model wrote behind the opening bracket, up to the closing one or to max_call_tokens.';
comment on column lost_samples.sample_count is 'How many samples of the position are this text.';

create table call_results (
    tool         text,
    tool_version text,
    input_key    uuid,
    input        text not null,
    results      text[] not null default '{}',
    reason       text,
    seconds      real not null default 0 check (seconds >= 0),
    created_at   timestamptz not null default now(),
    message      text not null default '',
    primary key (tool, tool_version, input_key),
    check (cardinality(results) > 0 or reason is not null)
);
comment on table call_results is 'What the tools answered: one row an input, serving all documents and runs that ask the same. Writer: stages/execution.py.';
comment on column call_results.tool is 'The tool''s name.';
comment on column call_results.tool_version is 'The tool''s version with its index, checkpoint or settings.';
comment on column call_results.input_key is 'First 128 bits of a sha256 over input.';
comment on column call_results.input is 'The effective input.';
comment on column call_results.results is 'The results, best first; empty where there is none.';
comment on column call_results.reason is 'Why there is no result, such as divides_by_zero; null where there is one.';
comment on column call_results.seconds is 'Seconds it took, its share of the batch where inputs are answered together.';
comment on column call_results.created_at is 'When the row was written.';
comment on column call_results.message is 'What was said where there is no result, such as the message of a database (no such column: prise); empty where the reason says all, and in rows from before this column.';

create table call_losses (
    scoring_recipe_id              text not null,
    call_id                        uuid not null,
    document_id                    uuid not null,
    result_rank                    integer check (result_rank >= 0),
    result                         text,
    reason                         text,
    loss_without_call              double precision check (loss_without_call >= 0),
    loss_without_result            double precision check (loss_without_result >= 0),
    loss_with_result               double precision check (loss_with_result >= 0),
    loss_without_call_full_context double precision check (loss_without_call_full_context >= 0 and loss_without_call_full_context < 'Infinity'),
    number_format                  text check (number_format in ('float32', 'tf32', 'bfloat16', 'float16')),
    reduction_bound                double precision generated always as (
        least(loss_without_call, loss_without_result, loss_without_call_full_context) - coalesce(loss_with_result, 0)
    ) stored,
    loss_reduction                 double precision generated always as (
        case when loss_without_call is not null and loss_without_result is not null
             then least(loss_without_call, loss_without_result, loss_without_call_full_context) - loss_with_result end
    ) stored,
    token_log_probabilities        real[],
    scored_tokens                  text[],
    constraint a_scored_call_has_a_result_and_three_finite_losses check (
        reason is not null or result is not null and loss_without_call is not null and loss_without_call < 'Infinity'
        and loss_without_result is not null and loss_without_result < 'Infinity'
        and loss_with_result is not null and loss_with_result < 'Infinity'
    )
) partition by list (scoring_recipe_id);
create index call_losses_kept on call_losses (scoring_recipe_id, loss_reduction) where reason is null;
create index call_losses_not_scored on call_losses (scoring_recipe_id, reason, document_id, call_id) where reason is not null and reason <> 'pruned_below';
alter table call_losses alter column call_id set (n_distinct = 4, n_distinct_inherited = 4);
comment on table call_losses is 'Three losses for each candidate call, kept or not; or the reason why it was not scored. One partition for each scoring recipe, in which document_id and call_id are the key. Writer: stages/scoring.py.';
comment on column call_losses.scoring_recipe_id is 'The scoring''s recipe.';
comment on column call_losses.call_id is 'The call, as in candidate_calls.';
comment on column call_losses.document_id is 'The document.';
comment on column call_losses.result_rank is 'Which of the tool''s results was taken, from 0: the first that does not repeat the document''s own text.';
comment on column call_losses.result is 'That result.';
comment on column call_losses.reason is 'Why the call was not scored or its losses do not count (the tool''s reason, repeats_document_text, loss_not_finite; pruned_below: the losses that were computed prove that it cannot reach prune_below; input_only_after: its input stands in the text only after it, and the run does not score such calls); null for a scored call.';
comment on column call_losses.loss_without_call is 'L(nothing): weighted loss of the tokens after the call''s position, without a call, nats. With a context window: given the last tokens before the position alone, as the other two.';
comment on column call_losses.loss_without_result is 'L(e(c, "")): the same with the call but not its result as a prefix, nats.';
comment on column call_losses.loss_with_result is 'L+ = L(e(c, r)): the same with the call and its result as a prefix, nats.';
comment on column call_losses.loss_without_call_full_context is 'L(nothing) given the whole text before the position, nats, where the others were computed in a context window: no call wins because context was withheld. Null without a window.';
comment on column call_losses.number_format is 'float32, tf32, bfloat16 or float16: the numbers in which the losses were computed. Null if there are none.';
comment on column call_losses.reduction_bound is 'The most that loss_reduction can be by the losses that are known, nats: loss_reduction itself where all are. With reason pruned_below it is below the run''s prune_below.';
comment on column call_losses.loss_reduction is 'L- - L+ = min(loss_without_call, loss_without_result, loss_without_call_full_context where there is one) - loss_with_result, nats. Counts only where reason is null; null for a pruned call.';
comment on column call_losses.token_log_probabilities is 'Natural log probabilities of the at most five tokens that the losses weight, a line for each loss: [1] without the call, [2] with the call without its result, [3] with its result, [4] without the call given the whole text, where the others are in a context window; [3][1] is that of the token directly after the call. Null elements: the loss was not computed. Null: not stored, as the run wanted .';
comment on column call_losses.scored_tokens is 'The text of the at most five tokens that the losses weight, in the order of token_log_probabilities. Null: not stored.';

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
