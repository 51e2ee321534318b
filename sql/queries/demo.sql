-- What the demo prints while it runs and at its end.

-- name: calls_so_far
-- Distinct calls that were sampled so far for a run's documents, and how many of them are kept.
select coalesce(sum(sampled.calls), 0)::bigint as calls, (select count(*) from kept_calls_of(:run_id)) as kept
from run_tools rt
cross join lateral (
    -- With a `with`, as in scored_calls, so that only the partition of the recipe is read.
    with done as (select * from stage_ledger where recipe_id = rt.sampling_recipe_id and stage = 'sample')
    select cast(done.counts ->> 'candidates' as bigint) as calls
    from done
    join run_tool_documents member
        on member.run_id = rt.run_id and member.tool = rt.tool and member.variant_id = done.document_id
) sampled
where rt.run_id = :run_id

-- name: new_work
-- Documents of a run by tool: those with a paragraph to annotate, and those of them that were scored since
-- the run began.
select rt.tool, count(*) as documents,
    count(*) filter (where scored.committed_at >= run.started_at) as annotated_now
from annotation_runs run
join run_tools rt on rt.run_id = run.run_id
cross join lateral (
    with done as (select * from stage_ledger where recipe_id = rt.scoring_recipe_id and stage = 'score')
    select done.committed_at
    from done
    join run_tool_documents member
        on member.run_id = rt.run_id and member.tool = rt.tool and member.variant_id = done.document_id
) scored
where run.run_id = :run_id
group by rt.tool
order by rt.tool

-- name: best_calls
-- The kept calls that gain most, one a text, the best of each tool first.
with best_of_text as (
    select distinct on (document_uuid) tool, text_before, call_text, result, text_after, gain, probability_with, document_uuid
    from kept_calls_of(:run_id)
    where releasable
    order by document_uuid, gain desc, call_text
)
select tool, text_before, call_text, result, text_after, gain, probability_with
from best_of_text
order by row_number() over (partition by tool order by gain desc, document_uuid), gain desc, document_uuid
limit :at_most

-- name: outputs
-- The release and the finetuned model of a run; null if it has none.
select r.state, release.uri as release_uri, release.documents as released_texts,
    release.calls as released_calls,
       release.lacking_tools, model.uri as model_uri, model.training_loss
from annotation_runs r
left join run_releases made on made.run_id = r.run_id
left join dataset_releases release on release.release_id = made.release_id
left join run_models trained on trained.run_id = r.run_id and not trained.without_calls
left join finetuned_models model on model.model_id = trained.model_id
where r.run_id = :run_id

-- name: outcome
-- How a run ended, with its corpus, release and finetuned model; null if it has none.
select r.state, r.problem, r.corpus_uri, r.corpus_version, release.release_id, release.uri as release_uri,
       release.documents as released_texts, release.calls as released_calls, model.model_id,
           model.uri as model_uri
from annotation_runs r
left join run_releases made on made.run_id = r.run_id
left join dataset_releases release on release.release_id = made.release_id
left join run_models trained on trained.run_id = r.run_id and not trained.without_calls
left join finetuned_models model on model.model_id = trained.model_id
where r.run_id = :run_id
