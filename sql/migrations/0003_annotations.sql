-- What was found: filter decisions, candidate calls, results, losses, and the ledger of what is done.
-- Each table has one writer, named in its comment. No foreign keys on the partitioned tables and the ledger: they reach 10^8 rows,
-- their writers read the documents they write about in the same transaction, and documents are never deleted.

create table filter_decisions (
    filter_recipe_id text not null,
    document_id      uuid not null references documents,
    paragraph        integer not null check (paragraph >= 0),
    start_char       integer not null check (start_char >= 0),
    end_char         integer not null check (end_char >= start_char),
    kept             boolean not null,
    reason           text,
    primary key (filter_recipe_id, document_id, paragraph),
    check (kept or reason is not null)
);
comment on table filter_decisions is 'The tools'' heuristics (Toolformer, appendix A): one row a paragraph, or one a document. Writer: stages/filtering.py.';
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
    position_probability double precision not null check (position_probability between 0 and 1),
    call_input           text not null,
    call_text            text not null,
    input_key            uuid,
    effective_input      text,
    sample_count         integer not null check (sample_count >= 1),
    input_only_after     boolean not null,
    primary key (sampling_recipe_id, call_id),
    check ((input_key is null) = (effective_input is null))
) partition by list (sampling_recipe_id);
create index on candidate_calls (document_id);
comment on table candidate_calls is 'Calls that the language model proposed, one row for equal calls at one position. A partition a sampling recipe. Writer: stages/sampling.py.';
comment on column candidate_calls.sampling_recipe_id is 'The sampling''s recipe.';
comment on column candidate_calls.call_id is 'First 128 bits of a sha256 over document, position and call.';
comment on column candidate_calls.document_id is 'The document.';
comment on column candidate_calls.paragraph is 'The paragraph, as in filter_decisions.';
comment on column candidate_calls.position_token is 'The token before which the call stands, from 0, in the tokens of the paragraph.';
comment on column candidate_calls.position_char is 'The character of documents.text before which the call stands, from 0: the start of a word with its leading space.';
comment on column candidate_calls.position_probability is 'p_i, the probability that a call starts here, 0 to 1.';
comment on column candidate_calls.call_input is 'The call''s input as the model wrote it.';
comment on column candidate_calls.call_text is 'The call as it stands in the text, such as Calculator(400 / 1400).';
comment on column candidate_calls.input_key is 'First 128 bits of a sha256 over effective_input: with tool and version the key of call_results. Null where effective_input is.';
comment on column candidate_calls.effective_input is 'What the tool is really asked: the input brought to its normal form, for Calendar the document''s date. Null where the document cannot answer such a call.';
comment on column candidate_calls.sample_count is 'How many samples gave this call at this position.';
comment on column candidate_calls.input_only_after is 'Whether the input stands only after the call in the text, not before: such a call is scored and never released.';

create table call_results (
    tool         text not null,
    tool_version text not null,
    input_key    uuid not null,
    input        text not null,
    results      text[] not null default '{}',
    reason       text,
    seconds      real not null default 0 check (seconds >= 0),
    created_at   timestamptz not null default now(),
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

create table call_losses (
    scoring_recipe_id   text not null,
    call_id             uuid not null,
    document_id         uuid not null,
    result_rank         integer check (result_rank >= 0),
    result              text,
    reason              text,
    loss_without_call   double precision check (loss_without_call >= 0),
    loss_without_result double precision check (loss_without_result >= 0),
    loss_with_result    double precision check (loss_with_result >= 0),
    loss_reduction      double precision
        generated always as (least(loss_without_call, loss_without_result) - loss_with_result) stored,
    primary key (scoring_recipe_id, call_id),
    -- NaN sorts above Infinity in Postgres, so "< Infinity" refuses both.
    constraint a_scored_call_has_a_result_and_three_finite_losses check (
        reason is not null
        or (result is not null
            and loss_without_call is not null and loss_without_call < 'Infinity'
            and loss_without_result is not null and loss_without_result < 'Infinity'
            and loss_with_result is not null and loss_with_result < 'Infinity'))
) partition by list (scoring_recipe_id);
create index on call_losses (document_id);
comment on table call_losses is 'Three losses for each candidate call, kept or not; or the reason why it was not scored. A partition a scoring recipe. Writer: stages/scoring.py.';
comment on column call_losses.scoring_recipe_id is 'The scoring''s recipe.';
comment on column call_losses.call_id is 'The call, as in candidate_calls.';
comment on column call_losses.document_id is 'The document.';
comment on column call_losses.result_rank is 'Which of the tool''s results was taken, from 0: the first that does not repeat the document''s own text.';
comment on column call_losses.result is 'That result.';
comment on column call_losses.reason is 'Why the call was not scored or its losses do not count (the tool''s reason, not_finite, repeats_document_text, pruned_below); null for a scored call.';
comment on column call_losses.loss_without_call is 'L(nothing): weighted loss of the tokens after the call''s position, without a call, nats.';
comment on column call_losses.loss_without_result is 'L(e(c, "")): the same with the call but not its result as a prefix, nats.';
comment on column call_losses.loss_with_result is 'L+ = L(e(c, r)): the same with the call and its result as a prefix, nats.';
comment on column call_losses.loss_reduction is 'L- - L+ = min(loss_without_call, loss_without_result) - loss_with_result, nats. Counts only where reason is null.';

create table stage_ledger (
    stage        text not null check (stage in ('filter', 'sample', 'execute', 'score')),
    recipe_id    text not null,
    document_id  uuid not null,
    rows_written integer not null check (rows_written >= 0),
    counts       jsonb not null default '{}' check (jsonb_typeof(counts) = 'object'),
    seconds      real not null default 0 check (seconds >= 0),
    committed_at timestamptz not null default now(),
    primary key (recipe_id, document_id, stage)
);
comment on table stage_ledger is 'What is done: one row for each document that a stage has finished under a recipe, written in the same transaction as the stage''s own rows.';
comment on column stage_ledger.stage is 'filter, sample, execute or score.';
comment on column stage_ledger.recipe_id is 'The stage''s recipe.';
comment on column stage_ledger.document_id is 'The document.';
comment on column stage_ledger.rows_written is 'Number of rows the stage has for this document (call_results: of the inputs asked).';
comment on column stage_ledger.counts is 'Counts by name, such as {"positions": 5, "samples": 25, "sample_without_end": 3}.';
comment on column stage_ledger.seconds is 'Seconds of work, a share of the micro-batch where documents were worked on together.';
comment on column stage_ledger.committed_at is 'When the transaction began that wrote the rows.';

create function document_shard(document_id uuid, shard_count integer) returns integer
    language sql immutable strict parallel safe
    return (('x' || substr(document_id::text, 1, 8))::bit(32)::bigint % shard_count)::integer;
comment on function document_shard(uuid, integer) is 'The shard a document belongs to, 0 to shard_count - 1: the first 32 bits of its id modulo the number of shards.';
