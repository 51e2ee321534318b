-- warn: a call of every tool of the run
-- files: checked_tools
-- remedy: The view yield_by_stage shows at which stage the tool's calls were lost.
select tool, released_calls
from {batch}
where released_calls < 1
