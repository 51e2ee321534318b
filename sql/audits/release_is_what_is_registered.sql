-- fail: on S3 what `dataset_releases` says: number of texts and calls, and the manifest's hash
-- files: checked_registration
-- remedy: Compare the release with Postgres: `toolformer-ops audit --release` with its id; --repair makes its files again.
select what, on_s3, registered
from {batch}
where on_s3 is distinct from registered
