-- The median seconds of a tool's calls with a result: of this version, or else of the version that was executed last.
select tool_version as measured_version, percentile_cont(0.5) within group (order by seconds::double precision) as seconds, count(*) as calls
from call_results
where tool = :tool and reason is null
group by tool_version
order by tool_version = :tool_version desc, max(created_at) desc, tool_version
limit 1
