-- The texts themselves, to be looked for in what was found in refused records.
select text from documents where document_id in (select text_id from texts_to_forget)
