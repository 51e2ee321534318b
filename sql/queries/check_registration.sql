-- Rows to check: what the release on S3 holds, and what is registered of it.
create temporary table checked_registration as
select compared.what, compared.on_s3, compared.registered
from run_releases made
join dataset_releases release on release.release_id = made.release_id
cross join lateral (values
    ('texts', (select cast(count(*) as text) from checked_texts), cast(release.documents as text)),
    ('calls', (select cast(count(*) as text) from checked_calls), cast(release.calls as text)),
    ('manifest', :manifest_sha256, release.manifest_sha256)
) as compared (what, on_s3, registered)
where made.run_id = :run_id
