-- What `summary` says of the last nights.

-- name: runs
-- The newest runs, with their numbers: stored for finished runs, computed for the others.
with newest as (
    select * from annotation_runs order by started_at desc, run_id limit :at_most
)
select run.run_id, run.state, run.schedule, run.corpus_uri, run.corpus_version, run.started_at,
    run.finished_at,
       (select coalesce(max(total), 0) from annotation_progress progress
        where progress.run_id = run.run_id and progress.stage = 'filter') as documents,
       (select coalesce(sum(calls), 0)::bigint from threshold_counts counts
        where counts.run_id = run.run_id and counts.is_keep_threshold) as kept_calls,
       release.release_id, coalesce(release.documents, 0) as examples,
       coalesce(own.documents, 0)::bigint as own_documents, coalesce(own.device_seconds, 0) as device_seconds
from newest run
left join run_releases made on made.run_id = run.run_id
left join dataset_releases release on release.release_id = made.release_id
left join lateral (
    select sum(documents) as documents, sum(device_seconds) as device_seconds
    from (
        select max(work.documents) as documents,
               sum(work.seconds) filter (
                   where work.stage in ('sample', 'score', 'placebo')
                      or work.stage = 'execute' and work.tool = any (cast(:device_tools as text[]))) as device_seconds
        from run_work work
        where work.run_id = run.run_id
        group by work.tool
    ) by_tool
) own on true
order by run.started_at desc, run.run_id

-- name: documents
-- How many documents a run takes, and how many its corpus has at its version.
select count(member.ordinal) filter (where member.ordinal < coalesce(run.ordinal_limit,
    2147483647)) as documents,
       count(member.ordinal) as corpus_documents, run.document_limit,
           cast(run.parameters ->> 'until_kept' as integer) as until_kept
from annotation_runs run
left join lateral members_beyond(run.corpus_id, run.corpus_version, 2147483647, 0, 0, false) member on true
where run.run_id = :run_id
group by run.document_limit, until_kept

-- name: corpus_changes
-- How the documents of a run differ from those of an earlier one over the same corpus; changed: records with
-- an id that have another text.
with differing as materialized (
    select document_id, record_id, has_joined
    from differing_members(
        :corpus_id, :version, cast(:ordinal_limit as integer), :before_version,
            cast(:before_ordinal_limit as integer))
),
by_document as (
    select bool_or(has_joined) as is_member, bool_or(not has_joined) as was_member
    from differing
    group by document_id
)
select (select count(*) from by_document where is_member and not was_member) as added,
       (select count(*) from by_document where was_member and not is_member) as removed,
       (select count(*) from by_document where is_member and was_member) as corrected,
       (select count(distinct record_id)
        from differing new
        join differing old using (record_id)
        where new.has_joined and not old.has_joined and new.document_id <> old.document_id) as changed

-- name: tools
-- What a run did itself for each of its tools.
select work.tool, jsonb_object_agg(work.stage, work.documents) as done_by_stage,
       coalesce(max(progress.total) filter (where work.stage = 'filter'), 0) as documents,
       coalesce(sum(work.seconds) filter (
           where work.stage in ('sample', 'score', 'placebo') or work.stage = 'execute'
               and work.tool = any (cast(:device_tools as text[]))), 0)
           as device_seconds
from run_work work
join annotation_progress progress using (run_id, tool, stage)
where work.run_id = :run_id
group by work.tool
order by work.tool

-- name: rates
-- How many of the calls that a run keeps of each tool it would keep by chance.
select tool, threshold, calls, texts, placebos_scored, false_discovery_rate, rate_low, rate_high
from threshold_counts
where run_id = :run_id and is_keep_threshold
order by tool

-- name: failed_runs
-- The runs of a run's schedule that ended without success since the run before it.
select failed.run_id
from annotation_runs run
join annotation_runs failed
    on failed.schedule = run.schedule and failed.corpus_id = run.corpus_id and failed.run_id <> run.run_id
left join annotation_runs before on before.run_id = cast(:before_run_id as text)
where run.run_id = :run_id
  and failed.state <> 'success'
  and failed.started_at <= run.started_at
  and (before.run_id is null or failed.started_at >= before.started_at)
order by failed.started_at

-- name: failed_work
-- What a run that failed did for another: documents by tool and stage, under the other's recipes.
select work.tool, work.stage, work.documents
from run_work work
join run_tools theirs on theirs.run_id = work.run_id and theirs.tool = work.tool
join run_tools ours on ours.run_id = :run_id and ours.tool = work.tool
cross join stages_of(theirs) did
join stages_of(ours) asked on asked.stage = did.stage and asked.recipe_id = did.recipe_id
where work.run_id = :failed_run_id and work.stage = did.stage
order by work.tool, work.stage

-- name: warnings
select subject, check_name, severity, message
from quality_results
where run_id = :run_id and not success
order by severity, subject, check_name

-- name: model
select model_id from run_models where run_id = :run_id and not without_calls

-- name: scores
-- The scores of the model that a run trained, calling tools as readily as it was evaluated, beside the model
-- that it was made from.
with newest as (
    select distinct on (suite, subset, metric, variant) suite, subset, metric, variant, inputs, score
    from evaluation_scores
    where run_id = :run_id and variant in ('base', 'with_tools')
    order by suite, subset, metric, variant, call_start_rank desc, evaluated_at desc
)
select concat_ws(' ', ours.suite, nullif(ours.subset, ours.suite)) as name, ours.metric, ours.inputs,
    ours.score, base.score as base_score
from newest ours
left join newest base on base.suite = ours.suite and base.subset = ours.subset and base.metric = ours.metric
    and base.variant = 'base'
where ours.variant = 'with_tools'
order by ours.suite, ours.subset, ours.metric

-- name: annotating_run
-- The run whose calls the release of a run holds: the run itself, or, of one that only finetunes, the run
-- that made the release.
select coalesce(
    (select release.run_id
     from run_releases made
     join dataset_releases release using (release_id)
     where made.run_id = :run_id and not exists (select from run_tools where run_id = :run_id)),
    :run_id
) as run_id

-- name: released_calls
-- The calls of a run's release that save most, and those that save least, with the text around them.
with released as (
    select scored.tool, scored.call_text, scored.result, scored.gain, scored.probability_with,
        scored.text_before, scored.text_after,
           row_number() over (order by scored.gain desc, scored.document_uuid, scored.call_uuid) as place,
           count(*) over () as calls
    from run_releases made
    join release_calls held using (release_id)
    join scored_calls_of(:run_id) scored on scored.tool = held.tool and scored.call_uuid = held.call_id
    where made.run_id = :run_id
)
select tool, call_text, result, gain, probability_with, right(text_before, 60) as text_before,
    left(text_after, 30) as text_after,
       place <= :at_most as is_best
from released
where place <= :at_most or place > calls - :at_most
order by place

-- name: approvals
-- What people were asked before a run went on, and what they answered.
select step, is_approved, answered_by, answered_at at time zone 'UTC' as answered_at, max_tries
from approvals
where run_id = :run_id
order by step

-- name: best_calls
-- The new calls of compared_calls that save most, with the text around them.
select call.tool, call.call_text, call.result, call.gain, call.probability_with,
       substring(document.text from greatest(call.position_char - 60, 0) + 1 for least(call.position_char,
           60)) as text_before,
       substring(document.text from call.position_char + 1 for 30) as text_after
from compared_calls call
join documents document using (document_id)
where call.is_added and call.call_text is not null and call.gain is not null
order by call.gain desc, call.document_id, call.position_char, call.tool
limit :at_most

-- name: kept_nothing
-- Whether a run has no kept call, though its tools are done.
select exists (select from run_tools where run_id = :run_id)
   and not exists (select from kept_calls_of(:run_id) where releasable) as kept_nothing

-- name: scored_by_tool
-- Calls of a run that were sampled and scored, by tool.
select rt.tool, coalesce(sum(y.count) filter (where y.stage = 'sample' and y.reason = 'candidates'),
    0)::bigint as calls,
       coalesce(sum(y.count) filter (where y.stage = 'score' and y.reason = 'scored'), 0)::bigint as scored
from run_tools rt
left join yield_by_stage y on y.run_id = rt.run_id and y.tool = rt.tool
where rt.run_id = :run_id
group by rt.tool
order by rt.tool

-- name: nearest_calls
-- The scored calls that come nearest to the threshold of their tool, one a text.
with nearest_of_text as (
    select distinct on (document_uuid) tool, text_before, call_text, result, text_after, gain,
        probability_with, keep_threshold, document_uuid
    from scored_calls_of(:run_id)
    where not input_only_after
    order by document_uuid, keep_threshold - gain, call_text
)
select tool, text_before, call_text, result, text_after, gain, probability_with, keep_threshold
from nearest_of_text
order by keep_threshold - gain, document_uuid
limit :at_most

-- name: failures
-- The reasons for which most calls have no result.
select tool, reason, message, calls, query
from why_do_calls_have_no_result(:run_id)
limit :at_most

-- name: lower_thresholds
-- By tool, the thresholds that would keep one, ten and a hundred calls; null if so many do not save anything.
with ranked as (
    select tool, gain, row_number() over (partition by tool order by gain desc) as place
    from scored_calls_of(:run_id)
    where gain > 0 and not input_only_after  -- those are never released
)
select rt.tool, rt.keep_threshold, rt.prune_below,
       max(ranked.gain) filter (where ranked.place = 1) as keeps_1,
       max(ranked.gain) filter (where ranked.place = 10) as keeps_10,
       max(ranked.gain) filter (where ranked.place = 100) as keeps_100
from run_tools rt
left join ranked on ranked.tool = rt.tool
where rt.run_id = :run_id
group by rt.tool, rt.keep_threshold, rt.prune_below
order by rt.tool
