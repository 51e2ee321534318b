-- fail: no text that was forgotten
-- corpus: orphaned documents
-- remedy: Forget it again: `toolformer-ops forget --document` with the id.
select cast(document.document_id as text) as place, format('the text, forgotten at %s', date_trunc('second', forgotten.forgotten_at)) as found
from forgotten_documents forgotten
join documents document on forgotten.document_id in (document.document_id, document.variant_of)
where forgotten.removed_at is not null
