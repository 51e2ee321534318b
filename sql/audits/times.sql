-- All rows.

-- name: times_are_not_in_the_future
-- fail: a time that has passed
-- all: changed times
-- remedy: Compare with the clock of the machine that wrote it; restore the row from a backup.
select told.relation, told.place, cast(told.at as text) as found
from (
    select 'annotation_runs' as relation, run_id as place,
        greatest(started_at, finished_at, numbers_stored_at) as at from annotation_runs
    union all select 'stage_ledger', format('%s of %s', stage, document_id), committed_at from stage_ledger
    union all select 'documents', cast(document_id as text), created_at from documents
    union all select 'call_results', format('%s of %s', input_key, tool), created_at from call_results
    union all select 'micro_batches', cast(batch_id as text), committed_at from micro_batches
    union all select 'micro_batch_tries', cast(try_id as text), started_at from micro_batch_tries
    union all select 'failed_documents', cast(document_id as text), failed_at from failed_documents
    union all select 'recipes', recipe_id, greatest(created_at, dropped_at) from recipes
    union all select 'finished_work', format('%s of %s', recipe_id, corpus_id), finished_at from finished_work
    union all select 'corpora', corpus_id, created_at from corpora
    union all select 'corpus_versions', format('version %s of %s', version, corpus_id), made_at
        from corpus_versions
    union all select 'corpus_files', file_uri, ingested_at from corpus_files
    union all select 'forgotten_documents', cast(document_id as text), greatest(forgotten_at, removed_at)
        from forgotten_documents
    union all select 'quality_results', format('%s of %s in %s', check_name, subject, run_id), checked_at
        from quality_results
    union all select 'dataset_releases', release_id, greatest(created_at, withdrawn_at) from dataset_releases
    union all select 'run_releases', run_id, released_at from run_releases
    union all select 'finetuned_models', model_id, greatest(created_at, withdrawn_at) from finetuned_models
    union all select 'run_models', format('%s of %s', model_id, run_id), published_at from run_models
    union all select 'evaluation_scores', format('%s %s of %s', suite, subset, run_id), evaluated_at
        from evaluation_scores
    union all select 'published_artifacts', uri, published_at from published_artifacts
    union all select 'placebo_pools', placebo_recipe_id, drawn_at from placebo_pools
    union all select 'placebo_rates', format('%s of %s at %s', tool, run_id, threshold), counted_at
        from placebo_rates
    union all select 'judgements', cast(submission_id as text), judged_at from judgements
    union all select 'rounding_margins', format('%s %s', model_identity, number_format), measured_at
        from rounding_margins
    union all select 'runs_not_started', run_id, ended_at from runs_not_started
) told
-- A clock that was wrong for a while is no damage.
where told.at > now() + interval '4 days'
