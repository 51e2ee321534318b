-- Which calls help most?
-- The kept calls of the newest run that save most, in their sentences.
select tool, round(loss_reduction::numeric, 2) as nats_saved, right(text_before, 60) || ' [' || call_text || ' -> ' || result || ']' || left(text_after, 60) as sentence
from kept_calls
where run_id = (select run_id from annotation_runs order by started_at desc limit 1)
order by loss_reduction desc, call_id
limit 10;
