-- The next texts with a call of the release, in the order of their ids, with the url that the text has in the run: that of its variant.
select document.document_id, document.text, record.url, member.variant_id
from run_documents member
join documents document on document.document_id = member.document_id
join documents record on record.document_id = member.variant_id
where member.run_id = :run_id
  and member.document_id in (
      select chosen.document_id
      from releasable_calls chosen
      where chosen.left_out is null and chosen.document_id > cast(:after as uuid)
      group by chosen.document_id
      order by chosen.document_id
      limit :page_size
  )
order by document.document_id
