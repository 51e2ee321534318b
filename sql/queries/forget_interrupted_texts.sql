-- Take the next texts whose rows are still to be deleted; another process works on those that are locked.
insert into texts_to_forget (document_id, text_id)
select document_id, document_id
from (
    select document_id
    from forgotten_documents
    where removed_at is null
    order by forgotten_at, document_id
    limit :texts
    for update skip locked
) pending
