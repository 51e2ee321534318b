-- What did a run cost, and what was it expected to?
-- By tool: the estimate of `toolformer-ops estimate --store`, and what the run took.
create function what_did_a_run_cost(run text default '')
    returns table (
        tool text, texts_expected bigint, texts bigint, calls_expected bigint, calls bigint, rows_expected bigint,
        rows bigint, hours_expected double precision, at_least double precision, at_most double precision,
        hours double precision)
    language sql stable
as $$
    with chosen as (
        select estimate, cost from annotation_runs where run_id = run_or_newest(run)
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
    order by tool
$$;
comment on function what_did_a_run_cost is 'What did a run cost, and what was it expected to? About this run; an empty name is the newest run that ended well.';
