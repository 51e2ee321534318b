-- Releases that are made, registered, unchanged or published.

-- name: of_run
-- The release of a run.
select release.release_id, release.uri, release.manifest_sha256, release.documents, release.calls,
    release.lacking_tools,
       release.definition
from run_releases made
join dataset_releases release on release.release_id = made.release_id
where made.run_id = :run_id

-- name: sources
-- The runs that made the release at an address, or that of the model there: their corpora, and when it was
-- registered (UTC).
select run.corpus_uri, run.corpus_version,
    coalesce(model.created_at, release.created_at) at time zone 'UTC' as published_at
from dataset_releases release
join annotation_runs run on run.run_id = release.run_id
left join finetuned_models model on model.uri = :uri
where release.uri = :uri
   or release.release_id = model.release_id

-- name: set_of_run
-- A run has one release: the newest that it made or found.
insert into run_releases (run_id, release_id, left_out)
values (:run_id, :release_id, cast(:left_out as jsonb))
on conflict (run_id) do update
set release_id = excluded.release_id, released_at = excluded.released_at, left_out = excluded.left_out

-- name: set_overlaps
-- What the texts of a run's release share with evaluation data is written anew: that of an earlier run (null:
-- none) whose release it takes.
delete from run_overlaps where run_id = :run_id;
insert into run_overlaps (run_id, document_id, suite, data_set, question, words, shared_ngrams, is_left_out)
select :run_id, document_id, suite, data_set, question, words, shared_ngrams, is_left_out
from run_overlaps
where run_id = :earlier_run_id

-- name: register
-- Register a release; one that is registered already stays as it is, but for its manifest if its files were
-- made anew, and is no longer withdrawn. :rates is null if its card is not ours.
insert into dataset_releases (release_id, run_id, uri, manifest_sha256, documents, calls, lacking_tools,
    definition, rates)
values (:release_id, :run_id, :uri, :manifest_sha256, :documents, :calls, cast(:lacking_tools as text[]),
    cast(:definition as jsonb),
        cast(:rates as jsonb))
on conflict (release_id) do update
set manifest_sha256 = excluded.manifest_sha256,
    definition = excluded.definition,
    rates = coalesce(excluded.rates, dataset_releases.rates),
    withdrawn_at = null

-- name: unchanged
-- The release of the run before, if the corpus is at the same version, no row was written since of which a
-- release is made, and none of its texts was forgotten.
select earlier.run_id, made.left_out, release.release_id, release.uri, release.manifest_sha256,
    release.definition
from annotation_runs run
join annotation_runs earlier
    on earlier.run_id = :before_run_id
   and earlier.corpus_id = run.corpus_id
   and earlier.corpus_version = run.corpus_version
   and earlier.ordinal_limit is not distinct from run.ordinal_limit
join run_releases made on made.run_id = earlier.run_id
join dataset_releases release on release.release_id = made.release_id
where run.run_id = :run_id
  and release.withdrawn_at is null
  and not exists (
      select
      from run_tools ours
      left join run_tools theirs on theirs.run_id = earlier.run_id and theirs.tool = ours.tool
      where ours.run_id = run.run_id and ours.last_document_id is distinct from theirs.last_document_id
  )
  and not exists (
      select
      from run_tools ours
      cross join stages_of(ours) used
      join micro_batches batch on batch.recipe_id = used.recipe_id
      where ours.run_id = run.run_id and batch.committed_at >= made.released_at
  )
  and not exists (
      select
      from release_calls call
      join forgotten_documents using (document_id)
      where call.release_id = release.release_id
  )

-- name: changed_examples
-- How many texts of a run's release differ from the release that another run of its schedule finetuned on
-- last; all if none did.
with finetuned as (
    select model.release_id
    from run_models made
    join finetuned_models model on model.model_id = made.model_id
    join annotation_runs earlier on earlier.run_id = made.run_id
    where made.run_id <> :run_id
      and earlier.schedule = (select schedule from annotation_runs where run_id = :run_id)
    order by made.published_at desc
    limit 1
),
old as (
    select document_id, call_id from release_calls where release_id = (select release_id from finetuned)
),
new as (
    select calls.document_id, calls.call_id
    from run_releases made
    join release_calls calls on calls.release_id = made.release_id
    where made.run_id = :run_id
),
different as (
    (select * from new except all select * from old)
    union all
    (select * from old except all select * from new)
)
select count(distinct document_id) as examples from different

-- name: tools
-- The tools of a run in the order they were chosen: recipes, and the checks they failed.
select
    chosen.tool,
    registered.sampling_recipe_id,
    registered.execution_recipe_id,
    registered.scoring_recipe_id,
    registered.keep_threshold,
    registered.placebo_recipe_id,
    registered.keep_rule,
    rate.false_discovery_rate,
    rate.rate_low,
    rate.rate_high,
    rate.placebos_scored,
    array(
        select result.check_name
        from quality_results result
        where result.run_id = :run_id
          and result.subject = chosen.tool
          and result.severity = 'fail'
          and not result.success
        order by result.check_name
    ) as failed_checks
from annotation_runs run
cross join lateral unnest(run.tools) with ordinality as chosen (tool, place)
left join run_tools registered on registered.run_id = run.run_id and registered.tool = chosen.tool
left join placebo_rates rate
    on rate.run_id = registered.run_id and rate.tool = registered.tool
        and rate.threshold = registered.keep_threshold
where run.run_id = :run_id
order by chosen.place

-- name: rates
-- The false-discovery rates on the card of a release that is registered.
select rates from dataset_releases where release_id = :release_id and rates is not null
