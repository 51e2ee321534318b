-- What did the tools find, and which calls used it?
-- The queries with the most kept calls, with the answer that they used; column passages holds every answer.
-- About the newest run that finished; another one: toolformer-ops sql --run=night-1 ..., or psql --set=run=night-1.
\if :{?run} \else \set run '' \endif
select tool, query, result, reason, calls, texts, kept_calls, round(best_loss_reduction::numeric, 2) as most_nats_saved
from retrieved
where run_id = run_or_newest(:'run')
order by kept_calls desc, calls desc, tool, query
limit 20;
