-- fail: calls of the run's tools alone
select call_id, tool
from {batch}
where tool not in (select tool from checked_tools)
