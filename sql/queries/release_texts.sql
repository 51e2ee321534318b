-- The next texts with a call of the release, in the order of their ids.
select document.document_id, document.text, document.url
from documents document
where document.document_id in (
    select chosen.document_id
    from releasable_calls chosen
    where chosen.left_out is null and chosen.document_id > cast(:after as uuid)
    group by chosen.document_id
    order by chosen.document_id
    limit :page_size
)
order by document.document_id
