-- Calls of a run that were sampled and scored, by tool.
select rt.tool, coalesce(sum(y.count) filter (where y.stage = 'sample' and y.reason = 'candidates'), 0)::bigint as calls,
       coalesce(sum(y.count) filter (where y.stage = 'score' and y.reason = 'scored'), 0)::bigint as scored
from run_tools rt
left join yield_by_stage y on y.run_id = rt.run_id and y.tool = rt.tool
where rt.run_id = :run_id
group by rt.tool
order by rt.tool
