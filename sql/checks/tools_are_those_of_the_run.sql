-- fail: no call of a tool that is not one of the run's
select call_id, tool
from {batch}
where tool not in (select tool from checked_tools)
