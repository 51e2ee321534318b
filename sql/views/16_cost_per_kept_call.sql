create view cost_per_kept_call as
select run_id, tool, kept_calls, released_calls, sample_seconds, execute_seconds, score_seconds, placebo_seconds, seconds,
       seconds / nullif(kept_calls, 0) as seconds_per_kept_call,
       seconds / nullif(released_calls, 0) as seconds_per_released_call,
       own_seconds, start_up_seconds
from (
    select rt.run_id, rt.tool, work.*, yields.*, own.*
    from run_tools rt
    cross join lateral (
        select coalesce(sum(batch.seconds), 0) as own_seconds, coalesce(sum(batch.start_up_seconds), 0) as start_up_seconds
        from micro_batches batch
        where batch.run_id = rt.run_id and batch.tool = rt.tool
    ) own
    cross join lateral (
        select coalesce(sum(done.seconds) filter (where done.stage = 'sample'), 0) as sample_seconds,
               coalesce(sum(done.seconds) filter (where done.stage = 'execute'), 0) as execute_seconds,
               coalesce(sum(done.seconds) filter (where done.stage = 'score'), 0) as score_seconds,
               coalesce(sum(done.seconds) filter (where done.stage = 'placebo'), 0) as placebo_seconds,
               coalesce(sum(done.seconds), 0) as seconds
        from work_of_stages(rt) done
    ) work
    cross join lateral (
        -- As yield_by_stage counts them, which counts much more.
        select (select counts.calls from threshold_counts counts
                where counts.run_id = rt.run_id and counts.tool = rt.tool and counts.is_keep_threshold) as kept_calls,
               case
                   when exists (select from stored_runs stored where stored.run_id = rt.run_id) then (
                       select count from finished_run_yield where run_id = rt.run_id and tool = rt.tool and stage = 'release' and reason = 'released')
                   else (
                       select (select count(*) from release_calls call where call.release_id = made.release_id and call.tool = rt.tool)
                       from run_releases made where made.run_id = rt.run_id)
               end as released_calls
    ) yields
) counted;
comment on view cost_per_kept_call is 'What the kept calls of a run cost in seconds of work, by tool: over the documents of the run, whichever run did the work. Reads the ledger of these documents; give run_id.';
comment on column cost_per_kept_call.kept_calls is 'Kept calls; null before the run has scored.';
comment on column cost_per_kept_call.released_calls is 'Calls of the tool in the run''s release; null if there is none.';
comment on column cost_per_kept_call.sample_seconds is 'Seconds of sampling, on the device.';
comment on column cost_per_kept_call.execute_seconds is 'Seconds of execution; on the device for tools that use one.';
comment on column cost_per_kept_call.score_seconds is 'Seconds of scoring, on the device.';
comment on column cost_per_kept_call.placebo_seconds is 'Seconds of scoring placebos, on the device.';
comment on column cost_per_kept_call.seconds is 'Seconds of all stages together, without starting processes and loading models.';
comment on column cost_per_kept_call.seconds_per_kept_call is 'seconds / kept_calls; null if none is kept.';
comment on column cost_per_kept_call.seconds_per_released_call is 'seconds / released_calls; null if none is released.';
comment on column cost_per_kept_call.own_seconds is 'Seconds of work that this run did itself; the others are those of earlier runs under the same recipes.';
comment on column cost_per_kept_call.start_up_seconds is 'Seconds in which this run''s own processes started and loaded the model.';
call inherit_comments('cost_per_kept_call', 'run_tools');
