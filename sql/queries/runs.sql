-- Runs: their tools, recipes, states and costs.

-- name: not_started
-- The newest runs that ended before they started, or the one of this id.
select run_id, problem, ended_at
from runs_not_started
where :run_id = '' or run_id = :run_id
order by ended_at desc, run_id
limit :at_most

-- name: store_estimate
-- What the run is expected to take; a later estimate replaces an earlier one.
update annotation_runs set estimate = cast(:estimate as jsonb) where run_id = :run_id

-- name: by_id
select run_id, corpus_id, corpus_uri, corpus_version, ordinal_limit, tools, document_limit, parameters,
    model_identity, code_version, image,
       state, started_at, finished_at, schedule, chained_release_id, dag_id, dag_run_after
from annotation_runs
where run_id = :run_id

-- name: lock
-- No other transaction ends this run until the transaction ends; none if the run never started.
select run_id from annotation_runs where run_id = :run_id for no key update

-- name: tool
select run_id, tool, filter_recipe_id, sampling_recipe_id, execution_recipe_id, scoring_recipe_id,
    tool_version, keep_threshold,
       reads_record, placebo_recipe_id, keep_rule, last_document_id,
       (select definition ->> 'proposer' from recipes
           where recipe_id = sampling_recipe_id) as proposer_identity
from run_tools
where run_id = :run_id and tool = :tool

-- name: locked_recipes
-- The recipes of a run, or of one tool of it, with when rows of theirs were dropped last. None are dropped
-- until the transaction ends.
select recipe.recipe_id, recipe.dropped_at
from recipes recipe
where recipe.recipe_id in (
    select used.recipe_id
    from run_tools rt
    cross join stages_of(rt) used
    where rt.run_id = :run_id and rt.tool = coalesce(cast(:tool as text), rt.tool)
)
order by recipe.recipe_id
for share

-- name: insert_recipe
insert into recipes (recipe_id, stage, tool, parent_recipe_id, definition)
values (:recipe_id, :stage, :tool, :parent_recipe_id, cast(:definition as jsonb))
on conflict do nothing

-- name: finished_base
-- The version and ordinal up to which all these recipes have finished a corpus, of those that leave the
-- fewest members of the given version: an ordinal limit as high as the run's first, then the newest. No row
-- if there is none. Rows that were dropped since do not count, nor what one run, which checks its work again,
-- has finished itself.
select finished.version, finished.ordinal_limit
from finished_work finished
join recipes recipe on recipe.recipe_id = finished.recipe_id
where finished.recipe_id = any(cast(:recipe_ids as text[]))
  and finished.corpus_id = :corpus_id
  and finished.version <= :at_version
  and finished.run_id is distinct from :but_of_run
  and finished.finished_at > coalesce(recipe.dropped_at, '-infinity')
group by finished.version, finished.ordinal_limit
having count(*) = cardinality(cast(:recipe_ids as text[]))
order by least(finished.ordinal_limit, :below_ordinal) desc, finished.version desc
limit 1

-- name: ordinal_limit
-- The ordinal below which a corpus at a version holds the first so many documents; no row if it holds no more
-- than these.
select ordinal
from members_beyond(:corpus_id, :version, 2147483647, 0, 0, false)
order by ordinal
offset :document_limit
limit 1

-- name: running_of_schedule
-- The other runs of a schedule that are not closed.
select run_id from annotation_runs
where schedule = :schedule and run_id <> :run_id and state = 'running'
order by started_at

-- name: running_of_dags
-- The runs that DAG runs opened and that have not ended, with the time of the last commit.
select run_id, dag_id, dag_run_after,
       greatest(started_at, (select max(committed_at) from micro_batches done
           where done.run_id = run.run_id)) as quiet_since
from annotation_runs run
where state = 'running' and dag_id <> ''
order by started_at

-- name: insert_tool
-- Registering a tool of a run twice leaves the first registration, which is hashed.
insert into run_tools
    (run_id, tool, filter_recipe_id, sampling_recipe_id, execution_recipe_id, scoring_recipe_id, tool_version,
        keep_threshold,
     prune_below, reads_record, keep_rule)
values
    (:run_id, :tool, :filter_recipe_id, :sampling_recipe_id, :execution_recipe_id, :scoring_recipe_id,
        :tool_version,
     :keep_threshold, :prune_below, :reads_record, :keep_rule)
on conflict do nothing;
update run_tools rt set registered_hash = tool_registration_hash(rt)
where run_id = :run_id and tool = :tool and registered_hash is null

-- name: chained_release
-- The release at the address of a corpus, and the files of the corpus as they were ingested.
select release.release_id, release.manifest_sha256, run.chained_release_id,
       array(select content_sha256 from corpus_files where corpus_id = :corpus_id) as files
from dataset_releases release
join annotation_runs run on run.run_id = release.run_id
where release.uri = :uri and release.withdrawn_at is null

-- name: insert
-- Registering a run twice leaves the first registration, which is hashed. A run that did not start before has
-- started now.
insert into annotation_runs
    (run_id, corpus_id, corpus_uri, corpus_version, ordinal_limit, tools, document_limit, parameters,
        model_identity, code_version, image,
     schedule, chained_release_id, dag_id, dag_run_after)
values
    (:run_id, :corpus_id, :corpus_uri, :corpus_version, :ordinal_limit, cast(:tools as text[]),
        :document_limit, cast(:parameters as jsonb),
     :model_identity, :code_version, nullif(:image, ''), :schedule, :chained_release_id, :dag_id,
         :dag_run_after)
on conflict do nothing;
update annotation_runs run set registered_hash = registration_hash(run) where run_id = :run_id
    and registered_hash is null;
delete from runs_not_started where run_id = :run_id

-- name: insert_not_started
-- Nothing for a run that has started.
insert into runs_not_started (run_id, problem)
select :run_id, :problem
where not exists (select from annotation_runs where run_id = :run_id)
on conflict (run_id) do update set problem = excluded.problem, ended_at = excluded.ended_at

-- name: finish
-- If the clock was set back meanwhile, the run took no time.
update annotation_runs
set state = :state, finished_at = greatest(now(), started_at), problem = nullif(:problem, '')
where run_id = :run_id;
update annotation_runs run set ended_hash = ending_hash(run) where run_id = :run_id

-- name: store_cost
-- What the run took, in the terms of `toolformer-ops check --measure`: the work that it did itself, by its
-- micro-batches. On the device: sampling and scoring, and the execution of the tools in :device_tools.
with work as (
    select t.tool, s.stage, coalesce(sum(b.rows_written), 0) as rows, coalesce(sum(b.seconds), 0) as seconds,
           coalesce(sum((b.counts ->> 'paragraphs')::bigint), 0) as texts,
           coalesce(sum((b.counts ->> 'positions')::bigint), 0) as positions,
           coalesce(sum((b.counts ->> 'positions_pruned_below')::bigint), 0) as positions_pruned,
           coalesce(sum((b.counts ->> 'candidates')::bigint), 0) as calls,
           sum(b.network_tokens) as network_tokens, sum(b.network_seconds) as network_seconds,
           sum(b.network_operations) filter (where b.peak_operations is not null) as network_operations,
           sum(b.peak_operations) filter (where b.network_operations is not null) as peak_operations
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
               where stage in ('sample', 'score', 'placebo') or stage = 'execute'
                   and tool = any(cast(:device_tools as text[]))
           ) / 3600 as device_hours,
           jsonb_object_agg(stage, round(seconds::numeric, 3)) as seconds,
           sum(network_tokens) as network_tokens,
           round((sum(network_tokens) / nullif(sum(network_seconds), 0))::numeric, 1) as tokens_per_second,
           round((sum(network_operations) / nullif(sum(peak_operations), 0))::numeric, 4) as share_of_peak
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

-- name: set_approval
-- The answer of a person before a run continues; of a task that was cleared, the newest.
insert into approvals (run_id, step, is_approved, answered_by, answered_at, max_tries)
values (:run_id, :step, :is_approved, :answered_by, :answered_at, :max_tries)
on conflict (run_id, step) do update
set is_approved = excluded.is_approved, answered_by = excluded.answered_by,
    answered_at = excluded.answered_at,
    max_tries = excluded.max_tries
