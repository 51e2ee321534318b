-- Take every text that was forgotten.
insert into texts_to_forget (document_id, text_id)
select document_id, document_id from forgotten_documents
