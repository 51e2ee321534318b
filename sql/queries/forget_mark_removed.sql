update forgotten_documents set removed_at = clock_timestamp()
where document_id in (select text_id from texts_to_forget)
