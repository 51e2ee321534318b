-- The files of a release were written again, with other bytes than the registered ones.
update dataset_releases set manifest_sha256 = :manifest_sha256, withdrawn_at = null where release_id = :release_id
