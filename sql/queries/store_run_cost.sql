-- What the run's rows took, in the terms of `toolformer-ops estimate`: the work on its documents by the ledger, whichever run did it.
-- On the device: sampling and scoring, and the execution of the tools in :device_tools.
with recipes as (
    select t.tool, s.stage, s.recipe_id
    from run_tools t
    cross join lateral (
        values ('filter', t.filter_recipe_id), ('sample', t.sampling_recipe_id),
               ('execute', t.execution_recipe_id), ('score', t.scoring_recipe_id)
    ) s (stage, recipe_id)
    where t.run_id = :run_id
),
work as (
    select r.tool, r.stage, sum(l.rows_written) as rows, coalesce(sum(l.seconds), 0)::double precision as seconds,
           coalesce(sum((l.counts ->> 'paragraphs')::bigint), 0) as texts,
           coalesce(sum((l.counts ->> 'positions')::bigint), 0) as positions,
           coalesce(sum((l.counts ->> 'positions_pruned_below')::bigint), 0) as positions_pruned,
           coalesce(sum((l.counts ->> 'candidates')::bigint), 0) as calls
    from recipes r
    left join (stage_ledger l join run_tool_documents d on d.run_id = :run_id and d.variant_id = l.document_id)
        on l.recipe_id = r.recipe_id and l.stage = r.stage and d.tool = r.tool
    group by r.tool, r.stage
),
by_tool as (
    select tool,
           sum(texts) filter (where stage = 'sample') as texts,
           sum(positions) as positions,
           sum(calls) as calls,
           coalesce(sum(rows), 0) + sum(positions_pruned) as rows,
           sum(seconds) filter (
               where stage in ('sample', 'score') or stage = 'execute' and tool = any(cast(:device_tools as text[]))
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
