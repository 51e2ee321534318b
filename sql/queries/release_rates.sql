-- The false-discovery rates on the card of a release that is registered.
select rates from dataset_releases where release_id = :release_id and rates is not null
