-- A release (kind release) or model (kind model) by its id, with the runs that work with it now.
select publication.uri, publication.withdrawn_at,
       array(
           select run.run_id
           from annotation_runs run
           where run.state = 'running'
             and (run.run_id in (select run_id from run_releases where release_id = publication.release_id)
                  or run.run_id in (select run_id from run_models where model_id = publication.model_id))
           order by run.run_id
       ) as running
from (
    select release_id, null as model_id, uri, withdrawn_at
    from dataset_releases where :kind = 'release' and release_id = :publication_id
    union all
    select null, model_id, uri, withdrawn_at
    from finetuned_models where :kind = 'model' and model_id = :publication_id
) publication
