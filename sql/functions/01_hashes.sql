-- Hashes of rows, by which the ledger and the audit know them.

create or replace function content_uuid(parts bytea)
    returns uuid
    language sql immutable parallel safe
    return cast(encode(substring(sha256(parts) from 1 for 16), 'hex') as uuid);
comment on function content_uuid is
    'Id made of content: first 128 bits of the sha256 of parts that hashed_part made, joined. The same as '
    'records.content_uuid in Python.';

create or replace function hashed_part(part text)
    returns bytea
    language sql immutable parallel safe
    return int8send(octet_length(convert_to(part, 'UTF8'))) || convert_to(part, 'UTF8');
comment on function hashed_part is
    'One part of what an id is the hash of: its length in bytes, and its bytes.';

create or replace function rows_hash(row_texts text)
    returns uuid
    language sql immutable parallel safe
    return content_uuid(convert_to(coalesce(row_texts, ''), 'UTF8'));
comment on function rows_hash is
    'Hash of a document''s rows: their texts in the order of their keys, joined by newlines; null is no '
    'row.';

create or replace function filter_row_text(decision filter_decisions)
    returns text
    language sql stable parallel safe
    return cast(row(decision.paragraph, decision.start_char, decision.end_char, decision.kept,
        decision.reason) as text);
comment on function filter_row_text is 'A filter decision as stage_ledger.rows_hash hashes it.';

create or replace function call_row_text(call candidate_calls)
    returns text
    language sql stable parallel safe
    return cast(row(
        call.call_id, call.paragraph, call.position_token, call.position_char, call.position_probability,
            call.call_input, call.call_text,
        call.input_key, call.effective_input, call.sample_count, call.input_only_after) as text)
        || coalesce(' parent ' || call.parent_call, '')
        || case when call.proposed_by <> 'model' then ' proposed by ' || call.proposed_by else '' end;
comment on function call_row_text is 'A candidate call as stage_ledger.rows_hash hashes it.';

create or replace function pruned_row_text(pruned pruned_positions)
    returns text
    language sql stable parallel safe
    return cast(row(
        pruned.paragraph, pruned.position_token, pruned.position_char, pruned.position_probability,
            pruned.gain_bound) as text);
comment on function pruned_row_text is 'A pruned position as stage_ledger.rows_hash hashes it.';

create or replace function result_row_text(result call_results)
    returns text
    language sql stable parallel safe
    return cast(row(result.input_key, result.input, result.results, result.reason) as text)
        || case when result.message <> '' then ' message ' || result.message else '' end;
comment on function result_row_text is 'A tool''s answer as stage_ledger.rows_hash hashes it.';

-- A row without terms, tokens or probabilities adds nothing for them.
create or replace function losses_row_text(loss call_losses)
    returns text
    language sql stable parallel safe
    return cast(row(
        loss.call_id, loss.result_rank, loss.result, loss.reason, loss.loss_without_call,
            loss.loss_without_result, loss.loss_with_result,
        loss.loss_without_call_full_context, loss.number_format) as text)
        || coalesce(cast(loss.token_log_probabilities as text), '')
            || coalesce(cast(loss.scored_tokens as text), '')
        || coalesce(' probability without ' || loss.probability_without, '')
            || coalesce(' with ' || loss.probability_with, '');
comment on function losses_row_text is
    'A call''s losses as stage_ledger.rows_hash hashes them; generated columns follow from these.';

create or replace function placebo_row_text(placebo placebo_losses)
    returns text
    language sql stable parallel safe
    return cast(row(
        placebo.call_id, placebo.number, placebo.source, placebo.is_sampled, placebo.reason,
            placebo.loss_with_result,
        placebo.reduction_bound, placebo.information) as text)
        || coalesce(' probability ' || placebo.probability_with, '')
            || coalesce(' gain ' || placebo.gain, '');
comment on function placebo_row_text is
    'A placebo''s losses as stage_ledger.rows_hash hashes them; generated columns follow from these.';

create or replace function registration_hash(run annotation_runs)
    returns uuid
    language sql stable parallel safe
    return rows_hash(cast(row(
        run.run_id, run.corpus_id, run.corpus_uri, run.corpus_version, run.ordinal_limit, run.tools,
            run.document_limit, run.parameters,
        run.model_identity, run.code_version, run.image, run.schedule, run.chained_release_id,
            extract(epoch from run.started_at)) as text)
        || coalesce(' dag run ' || run.dag_id || ' ' || extract(epoch from run.dag_run_after), ''));
comment on function registration_hash is
    'Hash of what a run is from its registration on, with the DAG run that opened it; what is written at '
    'its end is not part of it.';

create or replace function ending_hash(run annotation_runs)
    returns uuid
    language sql stable parallel safe
    return rows_hash(cast(row(
        run.run_id, run.dag_id, extract(epoch from run.dag_run_after), run.state,
            extract(epoch from run.finished_at), run.problem) as text));
comment on function ending_hash is 'Hash of how a run ended, and of whose run it is.';

create or replace function tool_registration_hash(rt run_tools)
    returns uuid
    language sql stable parallel safe
    return rows_hash(cast(row(
        rt.run_id, rt.tool, rt.filter_recipe_id, rt.sampling_recipe_id, rt.execution_recipe_id,
            rt.scoring_recipe_id, rt.tool_version,
        rt.keep_threshold, rt.prune_below, rt.reads_record, nullif(rt.keep_rule, 'paper')) as text));
comment on function tool_registration_hash is
    'Hash of what a tool of a run is from its registration on; its placebos are drawn later.';

create or replace function variant_id_of(document uuid, url text, day date)
    returns uuid
    language sql immutable parallel safe
    return content_uuid(
        int8send(36) || convert_to(document::text, 'UTF8')
        || int8send(octet_length(coalesce(url, ''))) || convert_to(coalesce(url, ''), 'UTF8')
        || int8send(case when day is null then 0 else 10 end)
            || convert_to(coalesce(to_char(day, 'YYYY-MM-DD'), ''), 'UTF8'));
comment on function variant_id_of is
    'Id of the variant of a document with this url and date: content_uuid(document, url, day) in Python, '
    'with '''' for null. Stored in documents, with variant_of.';
