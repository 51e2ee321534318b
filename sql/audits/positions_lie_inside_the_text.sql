-- fail: positions after the start and before the end of the text
-- tool: checked_calls
-- files: checked_calls
-- remedy: `toolformer-ops audit --run` with the run's id names the damaged documents; --repair has the next run compute them again.
select call_id, position_char, text_length
from {batch}
where (position_char >= 1 and position_char < text_length) is not true
