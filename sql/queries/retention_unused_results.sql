-- Results of versions of tools that none of these runs uses.
select tool, tool_version, count(*) as results, sum(pg_column_size(result.*))::bigint as bytes
from call_results result
where not exists (
    select from run_tools used
    where used.run_id = any(cast(:run_ids as text[])) and used.tool = result.tool and used.tool_version = result.tool_version
)
group by tool, tool_version
order by tool, tool_version
