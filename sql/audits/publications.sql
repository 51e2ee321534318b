-- Releases, models, and what people judged of them.
-- remedy: Restore the row from a backup.

-- name: judgements_are_of_released_calls
-- fail: judgements of calls that a release holds
-- release: orphaned judgements
-- remedy: Restore the row from a backup, or delete it.
select cast(judged.submission_id as text) as place,
       format('one of call %s of %s, which release %s does not hold', judged.call_id, judged.tool,
           judged.release_id) as found
from judgements judged
where judged.release_id = any(cast(:release_ids as text[]))
  and not exists (
      select from release_calls call
      where call.release_id = judged.release_id and call.call_id = judged.call_id
          and call.document_id = judged.document_id
        and call.tool = judged.tool and call.scoring_recipe_id = judged.scoring_recipe_id)

-- name: models_are_of_their_release
-- fail: the release and base model of a model's definition, and a run with that base model
-- model: changed finetuned_models
select model.model_id as place,
       format('release %s of %s, and a run with %s', model.release_id, released.model_identity,
           trained.model_identity) as found
from finetuned_models model
join annotation_runs trained on trained.run_id = model.run_id
join dataset_releases release on release.release_id = model.release_id
join annotation_runs released on released.run_id = release.run_id
where model.model_id = any(cast(:model_ids as text[]))
  and model.withdrawn_at is null
  and (model.definition ->> 'release_id' is distinct from model.release_id
       or model.definition ->> 'base_model' is distinct from released.model_identity
       or trained.model_identity is distinct from released.model_identity)

-- name: models_are_those_of_the_run_that_made_them
-- fail: a model of this kind of the run that trained one
-- model: lost run_models
-- remedy: Restore the row from a backup, or publish the run's model again: `toolformer-ops stage publish --run RUN`.
select format('%s of %s', case when model.without_calls then 'baseline'
    else 'model' end, model.run_id) as place,
       format('none, and model %s that it trained', model.model_id) as found
from finetuned_models model
where model.model_id = any(cast(:model_ids as text[]))
  and not exists (
      select from run_models made where made.run_id = model.run_id
          and made.without_calls = model.without_calls)

-- name: rates_on_cards_are_those_of_the_run
-- fail: the false-discovery rates that the run had counted when its release was made
-- release: changed dataset_releases
-- remedy: Compare both with the release's card (README.md), and restore the wrong row from a backup.
select release.release_id || ' rates' as place,
    format('%s on the card, %s in placebo_rates', release.rates, counted.rates) as found
from dataset_releases release
cross join lateral (
    select max(rate.counted_at) as counted_at,
           coalesce(
               jsonb_object_agg(rate.tool, jsonb_build_object(
                   'false_discovery_rate', rate.false_discovery_rate, 'rate_low', rate.rate_low, 'rate_high',
                       rate.rate_high,
                   'placebos_scored', rate.placebos_scored))
               filter (where rate.false_discovery_rate is not null), '{}') as rates
    from jsonb_array_elements(release.definition -> 'tools') part
    join run_tools rt on rt.run_id = release.run_id and rt.tool = part.value ->> 'tool'
    join placebo_rates rate on rate.run_id = rt.run_id and rate.tool = rt.tool
        and rate.threshold = rt.keep_threshold
) counted
where release.release_id = any(cast(:release_ids as text[]))
  -- Rates that were counted again since say nothing of the card.
  and counted.counted_at <= release.created_at
  and release.rates <> counted.rates

-- name: releases_are_of_their_run
-- fail: the run that made a release, with the model and recipes of its definition
-- release: changed dataset_releases
select case when is_its_run then release_id || ' definition' else release_id end as place,
       format('run %s, started at %s', run_id, date_trunc('second', started_at)) as found
from (
    select release.release_id, run.run_id, run.started_at,
           exists (
               select from run_releases made
               where made.run_id = release.run_id
                 and (made.release_id = release.release_id
                     or made.released_at > release.created_at - interval '4 days'))
           -- The run that made it was registered as its maker in one transaction.
           and not exists (
               select from run_releases made
               where made.release_id = release.release_id and made.released_at = release.created_at
                   and made.run_id <> release.run_id)
               as is_its_run,
           release.definition ->> 'model' = run.model_identity
           and not exists (
               select from jsonb_array_elements(release.definition -> 'tools') part
               where not exists (
                   select from run_tools rt
                   where rt.run_id = release.run_id and rt.tool = part.value ->> 'tool'
                     and (rt.scoring_recipe_id = part.value ->> 'scoring_recipe_id' or not is_one_chain(rt))))
               as is_its_definition
    from dataset_releases release
    join annotation_runs run using (run_id)
    where release.release_id = any(cast(:release_ids as text[]))
) release
where not is_its_run or not is_its_definition

-- name: released_calls_were_chosen
-- fail: a choice for each call of a release
-- release: lost release_choices
-- remedy: Release its run again, which writes what is missing: `toolformer-ops stage release --run RUN`.
select release_id || ' call ' || call_id as place, 'none' as found
from release_calls
left join release_choices chosen using (release_id, call_id)
where release_id = any(cast(:release_ids as text[]))
    and (chosen.release_id is null or chosen.left_out is not null)

-- name: releases_do_without_texts_that_they_leave_out
-- fail: no call in a text that the release left out for the evaluation data in it
-- release: changed release_calls
select distinct made.release_id || ' ' || shared.document_id as place,
    format('%s in the release of %s', shared.document_id, made.run_id) as found
from run_releases made
join run_overlaps shared on shared.run_id = made.run_id and shared.is_left_out
join release_calls call on call.release_id = made.release_id and call.document_id = shared.document_id
where made.release_id = any(cast(:release_ids as text[]))

-- name: releases_have_a_definition
-- fail: what the id of a release is the hash of
-- release: lost dataset_releases
-- remedy: Release its run again, which writes it, if the id is the same: `toolformer-ops stage release --run RUN`.
select release_id || ' definition' as place, 'no definition' as found
from dataset_releases
where release_id = any(cast(:release_ids as text[])) and definition is null
