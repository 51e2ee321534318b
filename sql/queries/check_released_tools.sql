-- Rows to check: the tools of a run, in the order in which they were chosen, with the number of their calls in the release.
create temporary table checked_tools as
select chosen.tool, (select count(*) from checked_calls call where call.tool = chosen.tool) as released_calls
from annotation_runs run
cross join lateral unnest(run.tools) with ordinality as chosen (tool, place)
where run.run_id = :run_id
order by chosen.place
