-- How many calls of release_changes joined or left, by tool and reason, and in how many texts.
select is_added, tool, reason, count(*) as calls, count(distinct document_id) as texts
from release_changes
group by is_added, tool, reason
order by tool, is_added desc, calls desc, reason
