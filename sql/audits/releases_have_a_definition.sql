-- fail: what the id of a release is the hash of
-- release: lost dataset_releases
-- remedy: Release its run again, which writes it, if the id is the same: `toolformer-ops stage release --run RUN`.
select release_id || ' definition' as place, 'no definition' as found
from dataset_releases
where release_id = any(cast(:release_ids as text[])) and definition is null
