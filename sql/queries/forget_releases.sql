-- Releases that hold one of the texts, the oldest first.
select release.release_id, release.run_id, release.uri, release.withdrawn_at, held.texts
from dataset_releases release
cross join lateral (
    select count(distinct call.document_id) as texts
    from release_calls call
    join texts_to_forget text on text.document_id = call.document_id
    where call.release_id = release.release_id
) held
where held.texts > 0
order by release.created_at, release.release_id
