-- Where do calls get lost, and why?
-- Every reason for which a paragraph, a sample or a call went no further, the most frequent first in each stage. Placebos are no calls.
-- About the newest run that finished; another one: toolformer-ops sql --run=night-1 ..., or psql --set=run=night-1.
\if :{?run} \else \set run '' \endif
select tool, stage, reason, count
from yield_by_stage
where run_id = run_or_newest(:'run')
  and is_loss
  and stage <> 'placebo'
  and count > 0
order by tool, step, count desc, reason;
