-- fail: the text back, byte for byte, after its calls are taken out
-- tool: checked_texts
-- files: checked_texts
-- remedy: Read the text and its calls in the view candidates: a text that holds a call of the tool already can take no other.
select document_id, gives_text_back
from {batch}
where gives_text_back is not true
