-- Which calls help most?
-- The kept calls of the newest run that save most, in their sentences.
select t.tool, round(best.loss_reduction::numeric, 2) as nats_saved, right(best.text_before, 60) || ' [' || best.call_text || ' -> ' || best.result || ']' || left(best.text_after, 60) as sentence
from run_tools t
cross join lateral best_kept_calls(t.run_id, t.tool, 10) best
where t.run_id = (select run_id from annotation_runs order by started_at desc limit 1)
order by best.loss_reduction desc, best.call_id
limit 10;
