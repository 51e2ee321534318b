-- What became of the candidate calls?
-- By tool and outcome, with each reason and, of kept calls, what the release did with them; the most frequent first.
-- About the newest run that finished; another one: toolformer-ops sql --run=night-1 ..., or psql --set=run=night-1.
\if :{?run} \else \set run '' \endif
select tool, outcome, reason, release_outcome, count(*) as calls, count(distinct document_id) as texts
from candidates
where run_id = run_or_newest(:'run')
group by tool, outcome, reason, release_outcome
order by tool, calls desc, outcome, reason, release_outcome;
