-- The tools that a run asked for, in that order.
select chosen.tool
from annotation_runs run
cross join lateral unnest(run.tools) with ordinality as chosen (tool, place)
where run.run_id = :run_id
order by chosen.place
