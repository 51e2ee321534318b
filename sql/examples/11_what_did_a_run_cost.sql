-- What did a run cost, and what was it expected to?
-- By tool: the estimate of `toolformer-ops estimate --store`, and what the run took.
-- About the newest run that finished; another one: toolformer-ops sql --run=night-1 ..., or psql --set=run=night-1.
\if :{?run} \else \set run '' \endif
with chosen as (
    select estimate, cost from annotation_runs where run_id = run_or_newest(:'run')
),
expected as (
    select e.*
    from chosen
    cross join lateral jsonb_to_recordset(estimate -> 'tools') as e (
        tool text, texts bigint, calls bigint, rows bigint,
        device_hours numeric, device_hours_low numeric, device_hours_high numeric)
),
taken as (
    select c.*
    from chosen
    cross join lateral jsonb_to_recordset(cost -> 'tools') as c (
        tool text, texts bigint, calls bigint, rows bigint, device_hours numeric)
)
select tool, expected.texts as texts_expected, taken.texts, expected.calls as calls_expected, taken.calls,
       expected.rows as rows_expected, taken.rows,
       round(expected.device_hours, 3) as hours_expected,
       round(expected.device_hours_low, 3) as at_least, round(expected.device_hours_high, 3) as at_most,
       round(taken.device_hours, 3) as hours
from expected
full join taken using (tool)
order by tool;
