-- fail: positions after the start and before the end of the text
select call_id, position_char, text_length
from {batch}
where (position_char >= 1 and position_char < text_length) is not true
