-- fail: the text back, byte for byte, after its calls are taken out
select document_id, gives_text_back
from {batch}
where gives_text_back is not true
