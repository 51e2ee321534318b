-- Rows that are deleted: what a stage wrote of documents, and what was made of texts.

create or replace function delete_work(recipe text, documents uuid[])
    returns void
    language plpgsql set plan_cache_mode = force_custom_plan
as $$
begin
    delete from finished_work where recipe_id = recipe;
    delete from stage_ledger where recipe_id = recipe and document_id = any(documents);
    delete from failed_documents where recipe_id = recipe
        and (documents is null or document_id = any(documents));
    delete from micro_batch_tries where recipe_id = recipe
        and (documents is null or document_ids && documents);
    delete from document_claims where recipe_id = recipe
        and (documents is null or document_id = any(documents));
    delete from filter_decisions where filter_recipe_id = recipe and document_id = any(documents);
    delete from lost_samples where sampling_recipe_id = recipe
        and (documents is null or document_id = any(documents));
    delete from candidate_calls where sampling_recipe_id = recipe and document_id = any(documents);
    delete from pruned_positions where sampling_recipe_id = recipe and document_id = any(documents);
    delete from call_losses where scoring_recipe_id = recipe and document_id = any(documents);
    delete from placebo_losses where placebo_recipe_id = recipe and document_id = any(documents);
    delete from call_information where placebo_recipe_id = recipe and document_id = any(documents);
    -- Rows that are computed again are written again; those that retention drops stay in the history.
    delete from history_work where recipe_id = recipe and documents is not null;
    with taken_out as (
        delete from history_documents where recipe_id = recipe and document_id = any(documents)
            returning file_key
    )
    update history_files set state = 'stale' where state = 'whole'
        and file_key in (select file_key from taken_out);
end
$$;
comment on function delete_work is
    'Deletes what a stage wrote of documents under a recipe, with the mark that the recipe is finished: the '
    'next run does it again. Without documents (null) of all; the recipe''s partitions then stay, to be '
    'dropped as a whole, and the history keeps its rows.';

create or replace function ids_named_by(result quality_results)
    returns setof uuid
    language sql stable
as $$
    select cast(found.parts[1] as uuid)
    from regexp_matches(
        cast(result.observed as text) || result.message,
            '[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}', 'g') as found (parts)
$$;
comment on function ids_named_by is 'The ids of documents and calls that a check names.';

create or replace function rows_of_texts(texts uuid[], is_deleted boolean)
    returns table (table_name text, rows bigint)
    language plpgsql
as $$
declare
begin
    -- A table before those that it refers to.
    foreach table_name in array array[
        'stage_ledger', 'filter_decisions', 'placebo_pool_results', 'call_information', 'placebo_losses',
            'call_losses', 'lost_samples',
        'pruned_positions', 'candidate_calls', 'proposer_answers', 'corpus_spare_records', 'corpus_documents',
            'text_bands', 'text_sketches', 'documents'] loop
        if is_deleted then
            execute format('delete from %I where document_id = any($1)', table_name) using texts;
            get diagnostics rows = row_count;
        else
            execute format('select count(*) from %I where document_id = any($1)', table_name)
                using texts into rows;
        end if;
        return next;
    end loop;
end
$$;
comment on function rows_of_texts is
    'How many rows each table has of these texts, the variants among them; deletes these rows (is_deleted), '
    'or only counts them.';
