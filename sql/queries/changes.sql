-- What changed between two runs of a corpus.

-- name: run_named
-- The run of this id, or the one that first made the release of this id.
select run_id from annotation_runs where run_id = :name
union all
select run_id from dataset_releases where release_id = :name
limit 1

-- name: previous_run
-- The run that a run is compared with: the one stored when it finished; before that, the newest successful
-- one before it over the same corpus, of the same schedule, or for a run by hand of the same model.
select coalesce(
    run.previous_run_id,
    case when run.numbers_stored_at is null then (
        select earlier.run_id
        from annotation_runs earlier
        where earlier.corpus_id = run.corpus_id
          and earlier.state = 'success'
          and (earlier.started_at, earlier.run_id) < (run.started_at, run.run_id)
          and case when run.schedule is null then earlier.model_identity = run.model_identity
              else earlier.schedule = run.schedule end
          -- it annotated, and did not only finetune
          and exists (select from run_tools where run_tools.run_id = earlier.run_id)
        order by earlier.started_at desc, earlier.finished_at desc
        limit 1
    ) end) as run_id
from annotation_runs run
where run.run_id = :run_id

-- name: compare
-- The texts of two runs that are compared, or of one, with how many calls each has, in the temporary table
-- compared_texts.
drop table if exists compared_texts;
create temporary table compared_texts on commit drop as
select run.run_id, call.document_id, count(*) as calls
from (select distinct run_id from unnest(cast(:run_ids as text[])) named (run_id)) run
left join lateral (
    select other.run_id from unnest(cast(:run_ids as text[])) other (run_id) where other.run_id <> run.run_id
        limit 1
) other on true
cross join lateral calls_to_compare(run.run_id, other.run_id) call
group by run.run_id, call.document_id

-- name: runs
-- Two runs that are compared, the earlier one first, with what they released; where neither made a release,
-- with what they keep.
select run.run_id, run.state, run.problem, run.schedule, run.corpus_id, run.corpus_uri, run.corpus_version,
    run.ordinal_limit,
       release.release_id, coalesce(release.documents, kept.texts, 0) as texts,
           coalesce(release.calls, kept.calls, 0) as calls,
       coalesce(release.lacking_tools, '{}') as lacking_tools
from annotation_runs run
left join run_releases made on made.run_id = run.run_id
left join dataset_releases release on release.release_id = made.release_id
left join lateral (
    select cast(sum(held.calls) as bigint) as calls, count(*) as texts
    from compared_texts held
    where held.run_id = run.run_id
) kept on release.release_id is null
where run.run_id = any (cast(:run_ids as text[]))
order by run.started_at, run.run_id

-- name: find
-- The calls that only one of the releases of two runs holds, each with its reason, in the temporary table
-- compared_calls.
drop table if exists compared_calls;
create temporary table compared_calls on commit drop as
select * from release_changes_between(:run_id, cast(:before_run_id as text))

-- name: texts
-- Texts of the calls of two runs: those that only the newer one has, those that only the older one has, and
-- those of both with other calls.
with now as (
    select document_id from compared_texts where run_id = :run_id
),
before as (
    select document_id from compared_texts where run_id = cast(:before_run_id as text)
),
touched as (
    select distinct document_id from compared_calls
)
select count(*) filter (where before.document_id is null) as added,
       count(*) filter (where now.document_id is null) as removed,
       count(*) filter (where now.document_id is not null and before.document_id is not null
           and touched.document_id is not null) as changed
from now
full join before using (document_id)
left join touched using (document_id)

-- name: by_reason
-- How many calls of compared_calls joined or left, by tool and reason, and in how many texts.
select is_added, tool, reason, count(*) as calls, count(distinct document_id) as texts
from compared_calls
group by is_added, tool, reason
order by tool, is_added desc, calls desc, reason

-- name: calls
select is_added, tool, reason, detail, document_id, position_char, call_text, result, gain
from compared_calls
order by document_id, position_char, is_added, tool
limit :at_most
