-- The two rules of the method, each written once: by how much a call lowers the loss, and whether it is kept (Toolformer, section 2).
-- Views, checks and the release call these functions. Postgres inlines them: one expression, immutable, not strict.

create function loss_reduction(
    loss_without_call double precision, loss_without_result double precision, loss_without_call_full_context double precision,
    loss_with_result double precision)
    returns double precision
    language sql immutable parallel safe
    return case
        when loss_without_call is not null and loss_without_result is not null
        -- least() skips nulls: loss_without_call_full_context is null where the call was scored without a context window.
        then least(loss_without_call, loss_without_result, loss_without_call_full_context) - loss_with_result
    end;
comment on function loss_reduction(double precision, double precision, double precision, double precision) is 'L- - L+, nats: the smallest loss without the result minus the loss with it. Null where one of the three losses is missing, as for a pruned call.';

-- The generated column call_losses.loss_reduction keeps the expression that migration 0006 gave it. To make it call the function, Postgres
-- would write the whole table again (20 s for 1,000,000 rows, under an exclusive lock). tests/integration/test_rules.py compares the two,
-- and the check reduction_equals_its_definition compares them for each scored call of each run.

create function is_kept(reason text, loss_reduction double precision, keep_threshold double precision)
    returns boolean
    language sql immutable parallel safe
    return reason is null
        and loss_reduction >= keep_threshold
        and loss_reduction < 'Infinity';  -- NaN sorts above Infinity in Postgres, so this refuses both
comment on function is_kept(text, double precision, double precision) is 'The keep rule: the call was scored (no reason against it), and its loss reduction is a finite number of at least the threshold tau_f, nats. The same as losses.is_kept in Python.';

create or replace function kept_calls_at(run text, tool_name text, threshold double precision)
    returns table (
        document_id uuid, call_id uuid, text_before text, call_text text, result text, text_after text,
        loss_reduction double precision, releasable boolean)
    language plpgsql stable
as $$
declare
    pruned_below double precision;
begin
    select t.prune_below into pruned_below from run_tools t where t.run_id = run and t.tool = tool_name;
    if pruned_below is null then
        raise exception 'run %: expected a started run with %, found none', run, tool_name
            using hint = 'The table run_tools lists the tools of each run.';
    end if;
    if threshold is null or not (threshold >= pruned_below) then
        raise exception 'run %, %: expected a threshold of at least % nats, found %: calls below were not all computed',
            run, tool_name, pruned_below, threshold
            using hint = format('Start a run with prune_below at or below %s (0 computes every call).', threshold);
    end if;
    return query
        select s.document_id, s.call_id, s.text_before, s.call_text, s.result, s.text_after, s.loss_reduction,
               not s.input_only_after
        from scored_calls s
        where s.run_id = run and s.tool = tool_name and is_kept(null, s.loss_reduction, threshold);
end
$$;

-- Why a kept call is not in the release: counted when the release is made, since only then all tools of the run are compared.
alter table run_releases add column left_out jsonb not null default '{}' check (jsonb_typeof(left_out) = 'object');
comment on column run_releases.left_out is 'Number of kept calls that the release leaves out, by tool and reason: {"Calculator": {"better_call_at_position": 2, "above_max_examples": 1}}. Empty for releases from before migration 0009.';

-- Descriptions in the words of docs/glossary.md.
comment on table documents is 'One row for each text, in however many corpora it occurs. Never updated: url, date and title are those of the first record with this text.';
comment on column corpora.uri is 'Address of the corpus: file:///... or s3://bucket/prefix, without a slash at the end.';
comment on table corpus_files is 'One row for each file of a corpus. records = accepted + duplicates + rejected, exactly. Without ingested_at, the file is being read or its reading was interrupted; the next ingestion continues it.';
comment on column corpus_documents.file_uri is 'The file in which the text was found first.';
comment on column corpus_documents.line is 'Its line, from 1. Null where the file was changed later and no longer contains the text.';
comment on table recipes is 'One row for all that determines the output of a stage. Rows of the same recipe are the same work, shared by all runs that use it.';
comment on column recipes.created_at is 'When a run used it first.';
comment on column annotation_runs.tools is 'The tools of the run, in the order in which they were chosen.';
comment on column annotation_runs.estimate is 'Estimate from before the run: texts, calls, device hours, rows. Null where none was made.';
comment on column annotation_runs.cost is 'What the run took, in the same terms as the estimate. Null until it ends.';
comment on column candidate_calls.position_token is 'The token before which the call is inserted, from 0, in the tokens of the paragraph.';
comment on column candidate_calls.position_char is 'The character of documents.text before which the call is inserted, from 0: the start of a word with its leading space.';
comment on column candidate_calls.call_text is 'The call as it is written into the text, such as Calculator(400 / 1400).';
comment on column candidate_calls.effective_input is 'The input that the tool receives: call_input in its normal form; for Calendar the date of the document. Null where the document cannot answer such a call.';
comment on column candidate_calls.sample_count is 'Number of samples that are this call at this position.';
comment on column candidate_calls.input_only_after is 'Whether the input occurs in the text only after the call, not before it: such a call is scored and never released.';
comment on table pruned_positions is 'Positions at which no call was sampled, because the loss without a call is so low there that no call could reach prune_below. One partition for each sampling recipe. Writer: stages/sampling.py.';
comment on column dataset_releases.uri is 'Address of the release, s3://bucket/prefix.';
comment on column finetuned_models.uri is 'Address of the model, s3://bucket/prefix.';
comment on table run_releases is 'The release of each run, and what it leaves out. Writer: stages/release.py.';
comment on column run_releases.release_id is 'Its release: the newest, where a run was released again after a failed tool was repaired.';
comment on table evaluation_scores is 'One row for each model in each variant on each data set of a suite. Writer: stages/evaluation.py.';
