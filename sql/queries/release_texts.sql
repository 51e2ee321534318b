-- The next texts with a call of the release, in the order of their ids, with the url that the text has in the run: that of its variant.
select document.document_id, document.text, record.url, member.variant_id
from (
    select document_id
    from releasable_calls
    where left_out is null and document_id > cast(:after as uuid)
    group by document_id
    order by document_id
    limit :page_size
) chosen
join texts_to_choose_from member on member.document_id = chosen.document_id
join documents document on document.document_id = member.document_id
join documents record on record.document_id = member.variant_id
order by document.document_id
