-- What does a kept call cost?
-- Seconds of work by tool, over the documents of a run, whichever run did the work.
-- About the newest run that finished; another one: toolformer-ops sql --run=night-1 ..., or psql --set=run=night-1.
\if :{?run} \else \set run '' \endif
select tool, kept_calls, released_calls, round(seconds::numeric, 1) as seconds, round(own_seconds::numeric, 1) as own_seconds,
       round(seconds_per_kept_call::numeric, 2) as seconds_per_kept_call,
       round(seconds_per_released_call::numeric, 2) as seconds_per_released_call
from cost_per_kept_call
where run_id = run_or_newest(:'run')
order by tool;
