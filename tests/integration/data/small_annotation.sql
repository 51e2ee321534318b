-- Two runs over one corpus of four documents, small enough to be checked by hand. r1 (the newer) annotates the first three with
-- Calculator (tau_f 0.5), Calendar (1.0) and WikiSearch (1.0, not far yet); r2 all four with Calculator (1.0) under the same recipes.
insert into documents (document_id, text, url, document_date, created_at) values
    ('d1000000-0000-0000-0000-000000000000', 'Out of 1400 participants, 400 (or 29%) passed the test.', null, null, '2026-11-20'),
    ('d2000000-0000-0000-0000-000000000000', 'She had 520 shirts, sold 187 and has 333 left.', null, null, '2026-11-20'),
    ('d3000000-0000-0000-0000-000000000000', 'The meeting of Monday was short.', 'https://x.org/2023/01/30/a', null, '2026-11-20'),
    ('d4000000-0000-0000-0000-000000000000', 'We packed 7 boxes of 12, that is 84 pieces.', null, null, '2026-11-20');

insert into corpora (corpus_id, uri) values ('c000000000000000', 's3://toolformer/corpora/posts');
insert into corpus_documents (corpus_id, document_id, ordinal, file_uri, line) values
    ('c000000000000000', 'd1000000-0000-0000-0000-000000000000', 0, 's3://toolformer/corpora/posts/a.jsonl', 1),
    ('c000000000000000', 'd2000000-0000-0000-0000-000000000000', 1, 's3://toolformer/corpora/posts/a.jsonl', 3),
    ('c000000000000000', 'd3000000-0000-0000-0000-000000000000', 2, 's3://toolformer/corpora/posts/b.jsonl', 1),
    ('c000000000000000', 'd4000000-0000-0000-0000-000000000000', 3, 's3://toolformer/corpora/posts/b.jsonl', 2);
insert into corpus_files (corpus_id, file_uri, content_sha256, refused) values
    ('c000000000000000', 's3://toolformer/corpora/posts/a.jsonl', repeat('0', 64), '{"no_text": 1}'),
    ('c000000000000000', 's3://toolformer/corpora/posts/b.jsonl', repeat('0', 64), '{"no_text": 1, "corrupt_json": 1}');
insert into rejected_documents (corpus_id, file_uri, line, reason, detail) values
    ('c000000000000000', 's3://toolformer/corpora/posts/a.jsonl', 2, 'no_text', 'found 2 fields, and none called text (a line of 36 bytes)'),
    ('c000000000000000', 's3://toolformer/corpora/posts/b.jsonl', 3, 'no_text', 'found 1 fields, and none called text (a line of 21 bytes)'),
    ('c000000000000000', 's3://toolformer/corpora/posts/b.jsonl', 4, 'corrupt_json', 'Expecting value');

insert into annotation_runs (run_id, corpus_id, corpus_uri, corpus_version, ordinal_limit, tools, document_limit, state, started_at, finished_at) values
    ('r1', 'c000000000000000', 's3://toolformer/corpora/posts', 1, 3, '{Calculator,Calendar,WikiSearch}', 3, 'running', '2026-11-21 10:00Z', null),
    ('r2', 'c000000000000000', 's3://toolformer/corpora/posts', 1, null, '{Calculator}', null, 'success', '2026-11-20 10:00Z', '2026-11-20 11:00Z');
insert into run_tools
    (run_id, tool, filter_recipe_id, sampling_recipe_id, execution_recipe_id, scoring_recipe_id, tool_version, keep_threshold)
values
    ('r1', 'Calculator', 'f1', '51', 'e1', 'a1', '1', 0.5),
    ('r1', 'Calendar', 'f2', '52', 'e2', 'a2', '1', 1.0),
    ('r1', 'WikiSearch', 'f3', '53', 'e3', 'a3', '1', 1.0),
    ('r2', 'Calculator', 'f1', '51', 'e1', 'a1', '1', 1.0);

create table filter_decisions_1 partition of filter_decisions for values in ('f1', 'f2', 'f3');
create table stage_ledger_1 partition of stage_ledger default;
insert into filter_decisions (filter_recipe_id, document_id, paragraph, start_char, end_char, kept, reason) values
    ('f1', 'd1000000-0000-0000-0000-000000000000', 0, 0, 55, true, 'operation_with_its_result'),
    ('f1', 'd2000000-0000-0000-0000-000000000000', 0, 0, 46, true, 'operation_with_its_result'),
    ('f1', 'd3000000-0000-0000-0000-000000000000', 0, 0, 32, false, 'fewer_than_3_numbers'),
    ('f1', 'd4000000-0000-0000-0000-000000000000', 0, 0, 43, true, 'operation_with_its_result'),
    ('f2', 'd1000000-0000-0000-0000-000000000000', 0, 0, 55, false, 'no_url'),
    ('f2', 'd2000000-0000-0000-0000-000000000000', 0, 0, 46, false, 'no_url'),
    ('f2', 'd3000000-0000-0000-0000-000000000000', 0, 0, 32, true, 'date_in_url'),
    ('f3', 'd1000000-0000-0000-0000-000000000000', 0, 0, 20, true, 'no_heuristic'),
    ('f3', 'd1000000-0000-0000-0000-000000000000', 1, 20, 55, true, 'no_heuristic');

create table candidate_calls_1 partition of candidate_calls for values in ('51', '52');
create table call_losses_1 partition of call_losses for values in ('a1', 'a2');

-- c1, c2 at one place of d1, c3 elsewhere; c4 and c8 in d2 before 333, c5 before what it computes; c6 in d4; c7 in d3.
insert into candidate_calls
    (sampling_recipe_id, call_id, document_id, paragraph, position_token, position_char, position_probability, call_input,
     call_text, input_key, effective_input, sample_count, input_only_after)
values
    ('51', 'c1000000-0000-0000-0000-000000000000', 'd1000000-0000-0000-0000-000000000000', 0, 8, 33, 0.5,
     '400 / 1400', 'Calculator(400 / 1400)', '01000000-0000-0000-0000-000000000000', '400 / 1400', 3, false),
    ('51', 'c2000000-0000-0000-0000-000000000000', 'd1000000-0000-0000-0000-000000000000', 0, 8, 33, 0.5,
     '1400 / 400', 'Calculator(1400 / 400)', '02000000-0000-0000-0000-000000000000', '1400 / 400', 1, false),
    ('51', 'c3000000-0000-0000-0000-000000000000', 'd1000000-0000-0000-0000-000000000000', 0, 5, 25, 0.25,
     '400 / 0', 'Calculator(400 / 0)', '03000000-0000-0000-0000-000000000000', '400 / 0', 1, false),
    ('51', 'c4000000-0000-0000-0000-000000000000', 'd2000000-0000-0000-0000-000000000000', 0, 10, 36, 0.5,
     '520 - 187', 'Calculator(520 - 187)', '04000000-0000-0000-0000-000000000000', '520 - 187', 2, false),
    ('51', 'c5000000-0000-0000-0000-000000000000', 'd2000000-0000-0000-0000-000000000000', 0, 2, 7, 0.125,
     '520 - 187', 'Calculator(520 - 187)', '04000000-0000-0000-0000-000000000000', '520 - 187', 1, true),
    ('51', 'c6000000-0000-0000-0000-000000000000', 'd4000000-0000-0000-0000-000000000000', 0, 9, 32, 0.5,
     '7 * 12', 'Calculator(7 * 12)', '06000000-0000-0000-0000-000000000000', '7 * 12', 1, false),
    ('51', 'c8000000-0000-0000-0000-000000000000', 'd2000000-0000-0000-0000-000000000000', 0, 10, 36, 0.5,
     '520 / 187', 'Calculator(520 / 187)', '08000000-0000-0000-0000-000000000000', '520 / 187', 1, false),
    ('52', 'c7000000-0000-0000-0000-000000000000', 'd3000000-0000-0000-0000-000000000000', 0, 3, 14, 0.0625,
     '', 'Calendar()', '07000000-0000-0000-0000-000000000000', '2023-01-30', 5, false);

-- Reductions: c1 1.25, c2 -0.25, c4 2.375, c5 0.625, c6 3.0, c7 0.5.
insert into call_losses
    (scoring_recipe_id, call_id, document_id, result_rank, result, reason, loss_without_call, loss_without_result, loss_with_result)
values
    ('a1', 'c1000000-0000-0000-0000-000000000000', 'd1000000-0000-0000-0000-000000000000', 0, '0.29', null, 2.0, 1.75, 0.5),
    ('a1', 'c2000000-0000-0000-0000-000000000000', 'd1000000-0000-0000-0000-000000000000', 0, '3.50', null, 2.0, 2.25, 2.25),
    ('a1', 'c3000000-0000-0000-0000-000000000000', 'd1000000-0000-0000-0000-000000000000', null, null, 'divides_by_zero', null, null, null),
    ('a1', 'c4000000-0000-0000-0000-000000000000', 'd2000000-0000-0000-0000-000000000000', 0, '333', null, 3.0, 2.875, 0.5),
    ('a1', 'c5000000-0000-0000-0000-000000000000', 'd2000000-0000-0000-0000-000000000000', 0, '333', null, 1.5, 1.375, 0.75),
    ('a1', 'c6000000-0000-0000-0000-000000000000', 'd4000000-0000-0000-0000-000000000000', 0, '84', null, 4.0, 3.5, 0.5),
    ('a1', 'c8000000-0000-0000-0000-000000000000', 'd2000000-0000-0000-0000-000000000000', 0, '2.78', 'loss_not_finite', null, null, null),
    ('a2', 'c7000000-0000-0000-0000-000000000000', 'd3000000-0000-0000-0000-000000000000', 0,
     'Today is Monday, January 30, 2023.', null, 2.5, 2.0, 1.5);

-- Equal ones, but for those of c5 with its result: (9 x 0.25 + 6 x 1.5) / 15 = 0.75.
update call_losses
set token_log_probabilities = array[
        array_fill(-loss_without_call, array[5]),
        array_fill(-loss_without_result, array[5]),
        case when call_id = 'c5000000-0000-0000-0000-000000000000' then array[-0.25, -0.25, -1.5, -1.5, -1.5]
             else array_fill(-loss_with_result, array[5]) end]::real[]
where reason is null;

insert into call_results (tool, tool_version, input_key, input, results, reason, seconds) values
    ('Calculator', '1', '01000000-0000-0000-0000-000000000000', '400 / 1400', '{0.29}', null, 0.5),
    ('Calculator', '1', '02000000-0000-0000-0000-000000000000', '1400 / 400', '{3.50}', null, 0.5),
    ('Calculator', '1', '03000000-0000-0000-0000-000000000000', '400 / 0', '{}', 'divides_by_zero', 0.5),
    ('Calculator', '1', '04000000-0000-0000-0000-000000000000', '520 - 187', '{333}', null, 0.5);

insert into stage_ledger (stage, recipe_id, document_id, rows_written, counts, seconds, committed_at) values
    ('filter', 'f1', 'd1000000-0000-0000-0000-000000000000', 1, '{}', 0.5, '2026-11-20 10:00Z'),
    ('filter', 'f1', 'd2000000-0000-0000-0000-000000000000', 1, '{}', 0.5, '2026-11-20 10:00Z'),
    ('filter', 'f1', 'd3000000-0000-0000-0000-000000000000', 1, '{}', 0.5, '2026-11-20 10:00Z'),
    ('filter', 'f1', 'd4000000-0000-0000-0000-000000000000', 1, '{}', 0.5, '2026-11-20 10:00Z'),
    ('sample', '51', 'd1000000-0000-0000-0000-000000000000', 3,
     '{"paragraphs": 1, "positions": 2, "samples": 8, "sample_without_end": 3, "duplicates_merged": 2, "candidates": 3}', 4, '2026-11-20 10:01Z'),
    ('sample', '51', 'd2000000-0000-0000-0000-000000000000', 3,
     '{"paragraphs": 1, "positions": 2, "samples": 8, "sample_without_end": 1, "sample_does_not_parse": 3, "duplicates_merged": 1, "candidates": 3}', 2, '2026-11-20 10:01Z'),
    ('sample', '51', 'd4000000-0000-0000-0000-000000000000', 1,
     '{"paragraphs": 1, "positions": 1, "samples": 4, "sample_without_end": 3, "candidates": 1}', 3, '2026-11-20 10:01Z'),
    ('execute', 'e1', 'd1000000-0000-0000-0000-000000000000', 3,
     '{"calls": 3, "inputs": 3, "executed": 3, "from_cache": 0, "with_result": 2, "divides_by_zero": 1}', 0.25, '2026-11-20 10:02Z'),
    ('execute', 'e1', 'd2000000-0000-0000-0000-000000000000', 2,
     '{"calls": 3, "inputs": 2, "executed": 2, "from_cache": 0, "with_result": 3}', 0.25, '2026-11-20 10:02Z'),
    ('execute', 'e1', 'd4000000-0000-0000-0000-000000000000', 1,
     '{"calls": 1, "inputs": 1, "executed": 1, "from_cache": 0, "with_result": 1}', 0.25, '2026-11-20 10:02Z'),
    ('score', 'a1', 'd1000000-0000-0000-0000-000000000000', 3, '{"calls": 3, "scored": 2, "divides_by_zero": 1}', 6, '2026-11-20 10:03Z'),
    ('score', 'a1', 'd2000000-0000-0000-0000-000000000000', 3, '{"calls": 3, "scored": 2, "loss_not_finite": 1}', 2, '2026-11-20 10:03Z'),
    ('score', 'a1', 'd4000000-0000-0000-0000-000000000000', 1, '{"calls": 1, "scored": 1}', 1, '2026-11-20 10:03Z'),
    ('filter', 'f2', 'd1000000-0000-0000-0000-000000000000', 1, '{}', 0, '2026-11-21 10:00Z'),
    ('filter', 'f2', 'd2000000-0000-0000-0000-000000000000', 1, '{}', 0, '2026-11-21 10:00Z'),
    ('filter', 'f2', 'd3000000-0000-0000-0000-000000000000', 1, '{}', 0, '2026-11-21 10:00Z'),
    ('sample', '52', 'd3000000-0000-0000-0000-000000000000', 1,
     '{"paragraphs": 1, "positions": 1, "samples": 5, "duplicates_merged": 4, "candidates": 1}', 1, '2026-11-21 10:01Z'),
    ('execute', 'e2', 'd3000000-0000-0000-0000-000000000000', 1,
     '{"calls": 1, "inputs": 1, "executed": 1, "from_cache": 0, "with_result": 1}', 0, '2026-11-21 10:02Z'),
    ('score', 'a2', 'd3000000-0000-0000-0000-000000000000', 1, '{"calls": 1, "scored": 1}', 1, '2026-11-21 10:03Z'),
    ('filter', 'f3', 'd1000000-0000-0000-0000-000000000000', 2, '{}', 0, '2026-11-21 10:00Z');

insert into quality_results (run_id, subject, check_name, severity, success, observed, message) values
    ('r1', 'Calculator', 'call_ids_are_unique', 'fail', true, '{}', '7 calls have 7 ids'),
    ('r1', 'Calculator', 'share_of_kept_calls', 'warn', false, '{"share": 0.6}', '60 % of the scored calls are kept, more than 50 %'),
    ('r2', 'Calculator', 'losses_are_finite', 'fail', false, '{}', 'of the older run');
insert into dataset_releases (release_id, run_id, uri, manifest_sha256, documents, calls, lacking_tools, created_at) values
    ('release-2', 'r2', 's3://toolformer/releases/release-2', repeat('0', 64), 3, 3, '{}', '2026-11-20 11:00Z');
insert into run_releases (run_id, release_id) values ('r2', 'release-2');
insert into release_calls (release_id, document_id, call_id, scoring_recipe_id, tool) values
    ('release-2', 'd1000000-0000-0000-0000-000000000000', 'c1000000-0000-0000-0000-000000000000', 'a1', 'Calculator'),
    ('release-2', 'd2000000-0000-0000-0000-000000000000', 'c4000000-0000-0000-0000-000000000000', 'a1', 'Calculator'),
    ('release-2', 'd4000000-0000-0000-0000-000000000000', 'c6000000-0000-0000-0000-000000000000', 'a1', 'Calculator');
insert into finetuned_models (model_id, release_id, run_id, uri, manifest_sha256, definition, training_loss, created_at) values
    ('model-2', 'release-2', 'r2', 's3://toolformer/models/model-2', repeat('0', 64), '{"steps": 20}', 2.5, '2026-11-20 12:00Z');
insert into run_models (run_id, model_id) values ('r2', 'model-2');
insert into evaluation_scores
    (run_id, suite, subset, model, model_id, variant, call_start_rank, metric, inputs, score, low, high, call_shares, inputs_with_call,
     score_with_call, score_without_call, seconds, data_sha256, calendar_date, evaluated_at) values
    ('r2', 'math', 'gsm8k', 'm@1', null, 'base', 0, 'share_correct', 200, 0.1, 0.06, 0.16, '{}', 0, null, 0.1, 20, repeat('a', 64), '2023-02-09', '2026-11-20 13:00Z'),
    ('r2', 'math', 'gsm8k', 'model-2', 'model-2', 'disabled', 0, 'share_correct', 200, 0.125, 0.08, 0.18, '{}', 0, null, 0.125, 20, repeat('a', 64), '2023-02-09', '2026-11-20 13:00Z'),
    ('r2', 'math', 'gsm8k', 'model-2', 'model-2', 'with_tools', 10, 'share_correct', 100, 0.9, 0.8, 0.95, '{}', 0, null, 0.9, 20, repeat('a', 64), '2023-02-09', '2026-11-20 12:00Z'),
    ('r2', 'math', 'gsm8k', 'model-2', 'model-2', 'with_tools', 10, 'share_correct', 200, 0.4, 0.33, 0.47, '{"Calculator": 0.95}', 190, 0.42, 0.1, 30,
     repeat('a', 64), '2023-02-09', '2026-11-20 13:00Z'),
    ('r2', 'perplexity', 'wikitext', 'm@1', null, 'base', 0, 'perplexity_by_token', 60, 9.87, 9.5, 10.2, '{}', 0, null, null, 50, repeat('b', 64), '2023-02-09', '2026-11-20 13:00Z'),
    ('r2', 'perplexity', 'wikitext', 'model-2', 'model-2', 'disabled', 0, 'perplexity_by_token', 60, 10.31, 9.9, 10.7, '{}', 0, null, null, 50,
     repeat('b', 64), '2023-02-09', '2026-11-20 13:00Z');
