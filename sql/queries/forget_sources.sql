-- The files from which the texts were ingested, with one line of each.
select member.file_uri, count(distinct member.document_id) as texts, min(member.line) as line
from corpus_documents member
where member.document_id in (select document_id from texts_to_forget)
group by member.file_uri
order by member.file_uri
