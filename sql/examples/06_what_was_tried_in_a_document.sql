-- What was tried in a document, and with what losses?
-- Every candidate call of one document, with what became of it; here of the one with the best call of the run. Put your own document's
-- id in place of the subquery.
-- About the newest run that finished; another one: toolformer-ops sql --run=night-1 ..., or psql --set=run=night-1.
\if :{?run} \else \set run '' \endif
select tool, position_char, call_text, result, outcome, reason, release_outcome, loss_without_call, loss_without_result, loss_with_result,
       loss_reduction, reduction_bound
from candidates
where run_id = run_or_newest(:'run')
  and document_id = (
      select best.document_id
      from run_tools t
      cross join lateral best_kept_calls(t.run_id, t.tool, 1) best
      where t.run_id = run_or_newest(:'run')
      order by best.loss_reduction desc, best.call_id
      limit 1
  )
order by position_char, tool, call_text;
