-- Which of these inputs are answered already, and the reason where the answer is that there is none.
select input_key, results, reason
from call_results
where tool = :tool and tool_version = :tool_version and input_key = any(cast(:input_keys as uuid[]))
