-- warn: an end within max_call_tokens for at least half of the samples
-- tool: checked_yield
-- remedy: A larger max_call_tokens lets more samples end.
select tool, without_end, samples
from {batch}
where 2 * without_end > samples
