-- The release of a run and its models.
select release.release_id, release.uri, release.documents, release.calls, release.lacking_tools, release.withdrawn_at, release.created_at,
       release.run_id as made_by,
       (select coalesce(jsonb_object_agg(held.tool, held.calls order by held.tool), '{}')
        from (select tool, count(*) as calls from release_calls where release_calls.release_id = release.release_id group by tool) held)
           as calls_by_tool,
       (select coalesce(jsonb_agg(jsonb_build_object(
                    'model_id', model.model_id, 'uri', model.uri, 'without_calls', trained.without_calls,
                    'training_loss', model.training_loss, 'development_perplexity', model.development_perplexity,
                    'is_withdrawn', model.withdrawn_at is not null) order by trained.without_calls), '[]')
        from run_models trained
        join finetuned_models model on model.model_id = trained.model_id
        where trained.run_id = made.run_id) as models
from run_releases made
join dataset_releases release on release.release_id = made.release_id
where made.run_id = :run_id
