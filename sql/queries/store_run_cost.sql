-- What the run took, in the terms of `toolformer-ops estimate`: the work that it did itself, by its micro-batches.
-- On the device: sampling and scoring, and the execution of the tools in :device_tools.
with work as (
    select t.tool, s.stage, coalesce(sum(b.rows_written), 0) as rows, coalesce(sum(b.seconds), 0) as seconds,
           coalesce(sum((b.counts ->> 'paragraphs')::bigint), 0) as texts,
           coalesce(sum((b.counts ->> 'positions')::bigint), 0) as positions,
           coalesce(sum((b.counts ->> 'positions_pruned_below')::bigint), 0) as positions_pruned,
           coalesce(sum((b.counts ->> 'candidates')::bigint), 0) as calls
    from run_tools t
    cross join (values ('filter'), ('sample'), ('execute'), ('score'), ('placebo')) s (stage)
    left join micro_batches b on b.run_id = t.run_id and b.tool = t.tool and b.stage = s.stage
    where t.run_id = :run_id
    group by t.tool, s.stage
),
by_tool as (
    select tool,
           sum(texts) filter (where stage = 'sample') as texts,
           sum(positions) as positions,
           sum(calls) as calls,
           sum(rows) + sum(positions_pruned) as rows,
           sum(seconds) filter (
               where stage in ('sample', 'score', 'placebo') or stage = 'execute' and tool = any(cast(:device_tools as text[]))
           ) / 3600 as device_hours,
           jsonb_object_agg(stage, round(seconds::numeric, 3)) as seconds
    from work
    group by tool
)
update annotation_runs
set cost = (
    select jsonb_build_object(
        'tools', coalesce(jsonb_agg(to_jsonb(by_tool) order by tool), '[]'),
        'total', jsonb_build_object(
            'texts', sum(texts), 'positions', sum(positions), 'calls', sum(calls), 'rows', sum(rows),
            'device_hours', sum(device_hours)))
    from by_tool)
where run_id = :run_id
