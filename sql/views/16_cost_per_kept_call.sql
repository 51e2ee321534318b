create view cost_per_kept_call as
select run_id, tool, kept_calls, released_calls, sample_seconds, execute_seconds, score_seconds, placebo_seconds, seconds,
       seconds / nullif(kept_calls, 0) as seconds_per_kept_call,
       seconds / nullif(released_calls, 0) as seconds_per_released_call,
       own_seconds, start_up_seconds
from (
    select rt.run_id, rt.tool, work.*, yields.*,
           (select coalesce(sum(w.seconds), 0) from run_work w where w.run_id = rt.run_id and w.tool = rt.tool) as own_seconds,
           (select coalesce(sum(batch.start_up_seconds), 0) from micro_batches batch
            where batch.run_id = rt.run_id and batch.tool = rt.tool) as start_up_seconds
    from run_tools rt
    cross join lateral (
        with done as (
            select stage, document_id, seconds
            from stage_ledger
            where (stage, recipe_id) in (('filter', rt.filter_recipe_id), ('sample', rt.sampling_recipe_id),
                                         ('execute', rt.execution_recipe_id), ('score', rt.scoring_recipe_id),
                                         ('placebo', rt.placebo_recipe_id))
        )
        select coalesce(sum(done.seconds::double precision) filter (where done.stage = 'sample'), 0) as sample_seconds,
               coalesce(sum(done.seconds::double precision) filter (where done.stage = 'execute'), 0) as execute_seconds,
               coalesce(sum(done.seconds::double precision) filter (where done.stage = 'score'), 0) as score_seconds,
               coalesce(sum(done.seconds::double precision) filter (where done.stage = 'placebo'), 0) as placebo_seconds,
               coalesce(sum(done.seconds::double precision), 0) as seconds
        from done
        join run_tool_documents member
            on member.run_id = rt.run_id and member.tool = rt.tool and member.variant_id = done.document_id
    ) work
    cross join lateral (
        select max(y.count) filter (where y.stage = 'keep' and y.reason = 'kept') as kept_calls,
               max(y.count) filter (where y.stage = 'release' and y.reason = 'released') as released_calls
        from yield_by_stage y
        where y.run_id = rt.run_id and y.tool = rt.tool
    ) yields
) counted;
comment on view cost_per_kept_call is 'What the kept calls of a run cost in seconds of work, by tool: over the documents of the run, whichever run did the work. Reads the ledger of these documents; give run_id.';
comment on column cost_per_kept_call.kept_calls is 'Kept calls; null before the run has scored.';
comment on column cost_per_kept_call.released_calls is 'Calls of the tool in the run''s release; null where there is none.';
comment on column cost_per_kept_call.sample_seconds is 'Seconds of sampling, on the device.';
comment on column cost_per_kept_call.execute_seconds is 'Seconds of execution; on the device for tools that use one.';
comment on column cost_per_kept_call.score_seconds is 'Seconds of scoring, on the device.';
comment on column cost_per_kept_call.placebo_seconds is 'Seconds of scoring placebos, on the device.';
comment on column cost_per_kept_call.seconds is 'Seconds of all stages together, without starting processes and loading models.';
comment on column cost_per_kept_call.seconds_per_kept_call is 'seconds / kept_calls; null where none is kept.';
comment on column cost_per_kept_call.seconds_per_released_call is 'seconds / released_calls; null where none is released.';
comment on column cost_per_kept_call.own_seconds is 'Seconds of work that this run did itself; the others are those of earlier runs under the same recipes.';
comment on column cost_per_kept_call.start_up_seconds is 'Seconds in which this run''s own processes started and loaded the model.';
call inherit_comments('cost_per_kept_call', 'run_tools');
