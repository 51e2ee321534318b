-- Calls that people judge.

-- name: judgements
select reviewer, tool, cast(call_id as uuid) as call_id, is_placebo, verdict
from counted_judgements
where release_id = :release_id
order by tool, reviewer, cast(call_id as uuid), is_placebo

-- name: release
-- A release with the run that made it.
select release.release_id, release.run_id, release.uri, release.manifest_sha256, release.documents,
    release.calls, release.lacking_tools,
       release.created_at, release.withdrawn_at, run.schedule, run.corpus_id, run.corpus_uri,
       exists (select from run_tools where run_tools.run_id = run.run_id) as annotates,
       array(select tool from run_tools where run_tools.run_id = run.run_id order by tool) as tools
from dataset_releases release
join annotation_runs run on run.run_id = release.run_id
where release.release_id = :release_id

-- name: export
-- Every judgement of a release in the order in which they were made, with whether it counts.
select judged.release_id, judged.seed, judged.tool, judged.document_id, judged.call_id,
    judged.scoring_recipe_id, judged.is_placebo,
       judged.source_call_id, judged.reviewer, judged.verdict, judged.judged_at, judged.submission_id,
       counted.call_id is not null as counts
from judgements judged
left join counted_judgements counted
    on counted.release_id = judged.release_id and counted.reviewer = judged.reviewer
        and counted.call_id = cast(judged.call_id as text)
   and counted.is_placebo = judged.is_placebo and counted.judged_at = judged.judged_at
       and counted.verdict = judged.verdict
where judged.release_id = :release_id
order by judged.judged_at, judged.submission_id

-- name: sample
-- A sample of a release's calls in the order in which they are shown, drawn by the seed; every second one by
-- another draw is to be shown with another call's result. Equal seeds, tools and sizes give equal samples.
with drawn as (
    select document_id, call_id, scoring_recipe_id, tool,
        md5(cast(:seed as text) || ' ' || call_id::text) as place
    from release_calls
    where release_id = :release_id and (cast(:tool as text) is null or tool = :tool)
    order by place
    limit 2 * cast(:calls as bigint)
)
select document_id, call_id, scoring_recipe_id, tool,
    row_number() over (order by md5('placebo ' || place)) % 2 = 0 as is_placebo
from drawn
order by place

-- name: insert
-- A judgement; the same form sent twice is one row. No column of the conflict is named: the role that writes
-- may read none.
insert into judgements
    (submission_id, release_id, seed, tool, document_id, call_id, scoring_recipe_id, is_placebo,
        source_call_id, reviewer, verdict)
values
    (:submission_id, :release_id, :seed, :tool, :document_id, :call_id, :scoring_recipe_id, :is_placebo,
        :source_call_id, :reviewer, :verdict)
on conflict do nothing

-- name: releases
-- The newest releases that are there, with the runs that made them and how many judgements they have.
select release.release_id, release.run_id, release.uri, release.documents, release.calls, release.created_at,
    run.schedule, run.corpus_id,
       run.corpus_uri, exists (select from run_tools where run_tools.run_id = run.run_id) as annotates,
       (select count(*) from judgements where judgements.release_id = release.release_id) as judgements,
       (select count(distinct reviewer) from judgements
           where judgements.release_id = release.release_id) as reviewers
from dataset_releases release
join annotation_runs run on run.run_id = release.run_id
where release.withdrawn_at is null
order by release.created_at desc, release.release_id
limit :at_most

-- name: judged
select cast(call_id as uuid) as call_id, is_placebo, seed, verdict from counted_judgements
    where release_id = :release_id and reviewer = :reviewer

-- name: call
-- A released call with its text and its result. The recipes are those of the run that made the release.
select made.sampling_recipe_id, made.placebo_recipe_id, call.variant_id, call.text, call.url, call.title,
    call.position_char, call.call_text,
       call.call_input, call.result
from dataset_releases release
join run_tools made on made.run_id = release.run_id and made.tool = :tool
cross join lateral (
    -- Planned separately, so that only the partitions of the two recipes are read.
    with versions as (
        select * from documents where document_id = :document_id or variant_of = :document_id
    )
    select version.document_id as variant_id, version.text, version.url, version.title,
        candidate.position_char, candidate.call_text,
           candidate.call_input, loss.result
    from versions version
    join candidate_calls candidate
        on candidate.sampling_recipe_id = made.sampling_recipe_id
            and candidate.document_id = version.document_id
       and candidate.call_id = :call_id
    join call_losses loss
        on loss.scoring_recipe_id = :scoring_recipe_id and loss.document_id = version.document_id
            and loss.call_id = candidate.call_id
) call
where release.release_id = :release_id

-- name: placebo
-- Another call's result for a call's place: the first placebo that the run scored there; if it scored none,
-- the result of another call of the tool in the release, drawn by the seed. No row if there is no other
-- result.
select source_call_id, result
from (
    select 1 as choice, source.call_id as source_call_id, source.result, '' as place
    from placebo_losses placebo
    join placebo_pool_results source on source.placebo_recipe_id = placebo.placebo_recipe_id
        and source.source = placebo.source
    where placebo.placebo_recipe_id = :placebo_recipe_id and placebo.document_id = :variant_id
        and placebo.call_id = :call_id
      and source.result <> :result
    union all
    select 2, other.call_id, loss.result, other.place
    from (
        select document_id, call_id, scoring_recipe_id,
            md5(cast(:seed as text) || cast(:call_id as text) || call_id::text) as place
        from release_calls
        where release_id = :release_id and tool = :tool and document_id <> :document_id
        order by place
        limit 50
    ) other
    cross join lateral (
        with versions as (
            select document_id from documents where document_id = other.document_id
                or variant_of = other.document_id
        )
        select losses.result
        from versions
        join call_losses losses
            on losses.scoring_recipe_id = other.scoring_recipe_id
                and losses.document_id = versions.document_id
           and losses.call_id = other.call_id
    ) loss
    where loss.result <> :result
) found
order by choice, place
limit 1
