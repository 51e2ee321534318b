-- Which calls help most?
-- The kept calls that save most, in their sentences.
-- About the newest run that finished; another one: toolformer-ops sql --run=night-1 ..., or psql --set=run=night-1.
\if :{?run} \else \set run '' \endif
select t.tool, round(best.loss_reduction::numeric, 2) as nats_saved, right(best.text_before, 60) || ' [' || best.call_text || ' -> ' || best.result || ']' || left(best.text_after, 60) as sentence
from run_tools t
cross join lateral best_kept_calls(t.run_id, t.tool, 10) best
where t.run_id = run_or_newest(:'run')
order by best.loss_reduction desc, best.call_id
limit 10;
