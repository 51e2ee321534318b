-- With a text all of its variants, and with a variant its text; and the texts of a release over which a run with chains went, which are
-- this text with calls.
insert into texts_to_forget (document_id, text_id)
select document_id, document_id
from chained_texts
where source_document_id in (select text_id from texts_to_forget)
on conflict do nothing;
insert into texts_to_forget (document_id, text_id)
select document_id, coalesce(variant_of, document_id)
from documents
where document_id in (select text_id from texts_to_forget)
   or variant_of in (select text_id from texts_to_forget)
on conflict do nothing;
analyze texts_to_forget
