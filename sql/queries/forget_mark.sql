-- From now on no ingestion takes these texts. A text that was forgotten before is deleted again, in case a stage wrote rows about it
-- meanwhile.
insert into forgotten_documents (document_id, reason)
select distinct text_id, cast(:reason as text) from texts_to_forget
on conflict (document_id) do update set removed_at = null
