-- What was found in the refused records of the corpora that hold one of the texts.
select corpus_id, file_uri, line, detail
from rejected_documents
where length(detail) >= :characters
  and corpus_id in (
      select corpus_id from corpus_documents where document_id in (select document_id from texts_to_forget)
  )
