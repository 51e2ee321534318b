-- fail: on S3 what `dataset_releases` says: number of texts and calls, and the manifest's hash
select what, on_s3, registered
from {batch}
where on_s3 is distinct from registered
