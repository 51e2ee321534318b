-- The next texts that hold a chosen call, in the order of their ids.
select document.document_id, document.text, document.url
from documents document
where document.document_id in (
    select chosen.document_id
    from chosen_calls chosen
    where chosen.document_id > cast(:after as uuid)
    group by chosen.document_id
    order by chosen.document_id
    limit :page_size
)
order by document.document_id
