-- What changed since the run before?
-- Places of texts at which the release differs from that of the run that it is compared with, by tool and reason. For any two runs put
-- before_run_id = 'night-1' in place of is_previous_run.
-- About the newest run that finished; another one: toolformer-ops sql --run=night-1 ..., or psql --set=run=night-1.
\if :{?run} \else \set run '' \endif
select coalesce(tool, tool_before) as tool, change, reason, count(*) as places, count(distinct document_id) as texts, min(detail) as such_as
from run_comparison
where run_id = run_or_newest(:'run')
  and is_previous_run
group by 1, 2, 3
order by 1, 2, places desc, 3;
