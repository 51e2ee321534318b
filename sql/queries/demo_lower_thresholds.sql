-- By tool, the thresholds that would keep one, ten and a hundred calls; null where so many do not save anything.
with ranked as (
    select tool, loss_reduction, row_number() over (partition by tool order by loss_reduction desc) as place
    from scored_calls
    where run_id = :run_id and loss_reduction > 0
)
select rt.tool, rt.keep_threshold, rt.prune_below,
       max(ranked.loss_reduction) filter (where ranked.place = 1) as keeps_1,
       max(ranked.loss_reduction) filter (where ranked.place = 10) as keeps_10,
       max(ranked.loss_reduction) filter (where ranked.place = 100) as keeps_100
from run_tools rt
left join ranked on ranked.tool = rt.tool
where rt.run_id = :run_id
group by rt.tool, rt.keep_threshold, rt.prune_below
order by rt.tool
