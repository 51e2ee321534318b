-- Take the texts of these documents or variants, and of those that were forgotten before.
insert into texts_to_forget (document_id, text_id)
select document_id, coalesce(variant_of, document_id) from documents where document_id = any(cast(:document_ids as uuid[]))
union
select document_id, document_id from forgotten_documents where document_id = any(cast(:document_ids as uuid[]))
