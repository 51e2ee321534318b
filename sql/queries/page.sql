-- The run page.

-- name: runs
-- The newest runs that annotate, of these DAGs, for the choice of one.
with listed as (
    select run.run_id, run.state, run.started_at, run.corpus_uri,
        coalesce('nightly_' || run.schedule, 'annotate_corpus') as dag_id
    from annotation_runs run
    where exists (select from run_tools where run_tools.run_id = run.run_id)
)
select run_id, state, started_at, corpus_uri, dag_id
from listed
where dag_id = any (cast(:dag_ids as text[]))
order by started_at desc, run_id
limit 50

-- name: changes
-- Two runs place by place: how many places changed by kind and reason (is_count), and a page of places in the
-- order of their texts.
with compared as materialized (
    select change, cast(document_id as uuid) as document_id, coalesce(position_char, -1) as place,
        position_char, tool, call_text, result, gain, call_id, tool_before,
           call_text_before, result_before, gain_before, call_id_before, reason, detail
    from run_comparison_between(:run_id, :before_run_id)
),
page as (
    select *
    from compared
    where (:reason = '' or reason = :reason)
      and (:change = '' or change = :change)
      and (document_id, place) > (cast(:after_document_id as uuid), :after_position)
    order by document_id, place
    limit :at_most
)
select counted.places is not null as is_count, coalesce(counted.change, page.change) as change,
       coalesce(counted.reason, page.reason) as reason, counted.places, page.document_id, page.position_char,
           page.tool, page.call_text,
       page.result, page.gain, page.call_id, page.tool_before, page.call_text_before, page.result_before,
       page.gain_before, page.call_id_before, page.detail,
       substr(document.text, greatest(page.position_char - 100, 0) + 1,
           least(page.position_char, 100)) as text_before,
       substr(document.text, page.position_char + 1, 100) as text_after
from (select change, reason, count(*) as places from compared group by change, reason) counted
full join page on false
left join documents document on document.document_id = page.document_id
order by is_count desc, places desc, page.document_id, page.position_char nulls first

-- name: yield_by_stage
-- The funnel of a run: what each stage counted, and the reasons for which something was lost there.
select tool, step, stage, reason, is_loss, count
from yield_by_stage
where run_id = :run_id
order by step, is_loss, tool, count desc, reason

-- name: network
-- What the language models of a run have read a second, and the share of their cards' peak; no row if they
-- have read nothing.
select sum(network_tokens) / nullif(sum(network_seconds), 0) as tokens_per_second,
       sum(network_operations) filter (where peak_operations is not null)
           / nullif(sum(peak_operations) filter (where network_operations is not null), 0) as share_of_peak,
       string_agg(distinct cards, ', ') as cards
from micro_batches
where run_id = :run_id and network_tokens > 0
having count(*) > 0

-- name: given_up
-- Texts of a run that a stage has given up, by tool, stage and reason.
select tool, stage, reason, count(*) as documents
from run_failed_documents
where run_id = :run_id
group by tool, stage, reason
order by tool, stage, reason

-- name: progress
-- How far each stage of a run is, in documents, and in tokens while the run works.
select tool, step, stage, done, total, tokens_done, tokens
from annotation_progress
where run_id = :run_id
order by tool, step

-- name: thresholds
-- How many calls of a run save at least so much, by tool and threshold.
select tool, threshold, is_keep_threshold, calls, texts, releasable_calls, placebos, placebos_scored,
    false_discovery_rate, rate_low, rate_high
from threshold_counts
where run_id = :run_id
order by tool, threshold

-- name: work
-- What a run did itself by tool and stage, from its micro-batches: documents and seconds, and the seconds of
-- the last :recent_seconds. What is left is counted in tokens, of the filter in documents: what one took
-- lately, in this run or else under its recipe.
with own as (
    select tool, stage, sum(documents) as documents, sum(seconds) as seconds,
           sum(case when stage = 'filter' then documents else tokens end) as units,
           sum(seconds) filter (where committed_at > now() - make_interval(secs => :recent_seconds)) as recent_seconds,
           sum(tokens) as tokens, min(committed_at - make_interval(secs => seconds)) as began_at,
               max(committed_at) as newest_at
    from micro_batches
    where run_id = :run_id
    group by tool, stage
)
select rt.tool, stages.step, stages.stage, coalesce(own.documents, 0)::bigint as documents,
    coalesce(own.seconds, 0) as seconds,
       coalesce(own.recent_seconds, 0) as recent_seconds,
           extract(epoch from now() - own.began_at)::double precision as age,
       extract(epoch from now() - own.newest_at)::double precision as newest_age,
           coalesce(own.tokens, 0)::bigint as tokens,
       coalesce(own.seconds / nullif(own.units, 0), (
           select sum(lately.seconds) / nullif(sum(lately.units), 0)
           from (
               select seconds, case when stage = 'filter' then documents else tokens end as units
                   from micro_batches
               where recipe_id = stages.recipe_id and (stage = 'filter' or tokens is not null)
               order by committed_at desc limit 50
           ) lately
       )) as seconds_a_unit
from run_tools rt
join annotation_runs run using (run_id)
cross join stages_of(rt) stages
left join own on own.tool = rt.tool and own.stage = stages.stage
where rt.run_id = :run_id
  and (stages.stage <> 'placebo' or has_placebos(run.parameters, rt.placebo_recipe_id))
order by rt.tool, stages.step

-- name: outputs
-- The release of a run and its models.
select release.release_id, release.uri, release.documents, release.calls, release.lacking_tools,
    release.withdrawn_at, release.created_at,
       release.run_id as made_by, made.released_at as made_at,
       (select coalesce(jsonb_object_agg(held.tool, held.calls order by held.tool), '{}')
        from (select tool, count(*) as calls from release_calls
            where release_calls.release_id = release.release_id group by tool) held)
           as calls_by_tool,
       (select coalesce(jsonb_agg(jsonb_build_object(
                    'model_id', model.model_id, 'uri', model.uri, 'without_calls', trained.without_calls,
                    'training_loss', model.training_loss, 'development_perplexity',
                        model.development_perplexity,
                    'is_withdrawn', model.withdrawn_at is not null) order by trained.without_calls), '[]')
        from run_models trained
        join finetuned_models model on model.model_id = trained.model_id
        where trained.run_id = made.run_id) as models
from run_releases made
join dataset_releases release on release.release_id = made.release_id
where made.run_id = :run_id

-- name: quality
-- Those that did not pass first.
select subject, check_name, severity, success, observed, message, checked_at
from quality_results
where run_id = :run_id
order by success, severity, subject, check_name

-- name: own_counts
-- What a run's own micro-batches counted, for a run whose funnel takes too long to count.
select batch.tool, case batch.stage when 'sample' then 2 when 'execute' then 3 when 'score' then 4
    else 5 end as step, batch.stage,
       counted.name as reason, counts_a_loss(counted.name) as is_loss,
       sum(counted.count::bigint)::bigint as count
from micro_batches batch
cross join lateral jsonb_each_text(batch.counts) as counted (name, count)
where batch.run_id = :run_id and batch.stage <> 'filter'
group by batch.tool, batch.stage, counted.name
order by step, is_loss, batch.tool, count desc, reason

-- name: at_work
-- The micro-batches at which a run's processes are at work now: since how many seconds, and on how many
-- tokens (the filter: documents). A killed process leaves its row until the end of the shard: a later try of
-- one of its documents says that it is dead.
select try.tool, try.stage, extract(epoch from now() - try.started_at)::double precision as seconds,
       case when try.stage = 'filter' then cardinality(try.document_ids)
           else tokens_kept(rt.filter_recipe_id, try.document_ids) end as units
from micro_batch_tries try
join run_tools rt using (run_id, tool)
where try.run_id = :run_id
  and not exists (
      select from micro_batch_tries later
      where later.recipe_id = try.recipe_id and later.stage = try.stage and later.try_id > try.try_id
        and later.document_ids && try.document_ids
  )
order by try.try_id

-- name: lost_samples
-- Of each tool and reason the first samples that became no call, with the end of the text before them.
select tool, reason, right(text_before, 60) as text_before, sample_text, sample_count
from run_lost_samples
where run_id = :run_id and place <= 5
order by tool, reason, place

-- name: run
-- A run with its tools, in the order in which they were chosen; none for a run that only finetunes.
select run.run_id, run.state, run.corpus_id, run.corpus_uri, run.corpus_version, run.ordinal_limit,
    run.schedule, run.model_identity,
       run.code_version, run.image, run.parameters, run.estimate, run.started_at, run.finished_at,
           run.problem,
       exists (select from stored_runs stored where stored.run_id = run.run_id) as has_stored_numbers,
       -- Of tools that propose each has a recipe of its own.
       (select case when run.parameters ->> 'proposer' in ('tool', 'tool-or-model', 'tool+model')
           then run.parameters ->> 'proposer'
                    else definition ->> 'proposer' end
        from recipes
        where recipe_id = (select min(sampling_recipe_id) from run_tools
            where run_tools.run_id = run.run_id)) as proposer_identity,
       coalesce((
           select jsonb_agg(to_jsonb(chosen) order by array_position(run.tools, chosen.tool), chosen.tool)
           from (
               select tool, keep_threshold, prune_below, reads_record, sampling_recipe_id,
                   execution_recipe_id,
                      scoring_recipe_id, tool_version, placebo_recipe_id, keep_rule
               from run_tools
               where run_tools.run_id = run.run_id
           ) chosen
       ), '[]') as tools
from annotation_runs run
where run.run_id = :run_id

-- name: histogram
-- The calls, texts and sampled placebos of a run by tool and by what they save: what a threshold keeps is the
-- sum from its bucket on.
select tool, bucket, calls, texts, releasable_calls, placebos
from gain_histogram
where run_id = :run_id
order by tool, bucket

-- name: false_discovery
-- By tool, its sampled placebos, and how many calls one of them represents (placebo_rates has the formula).
-- No row before they are counted.
select distinct rate.tool, rate.placebos_scored,
    rate.calls_sampled / nullif(pool.sample_share, 0) / nullif(rate.placebos_scored, 0) as calls_a_placebo
from placebo_rates rate
join placebo_pools pool using (placebo_recipe_id)
where rate.run_id = :run_id

-- name: largest_gain
-- The most that a call of a recipe gains before its placebo; null if none is scored.
select max(gain_bound) as largest
from call_losses
where scoring_recipe_id = :scoring_recipe_id and reason is null
