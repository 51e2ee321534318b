-- How many calls of compared_calls joined or left, by tool and reason, and in how many texts.
select is_added, tool, reason, count(*) as calls, count(distinct document_id) as texts
from compared_calls
group by is_added, tool, reason
order by tool, is_added desc, calls desc, reason
