-- The run of this id, or the one that first made the release of this id.
select run_id from annotation_runs where run_id = :name
union all
select run_id from dataset_releases where release_id = :name
limit 1
