-- A released call with its text and its result. The recipes are those of the run that made the release.
select made.sampling_recipe_id, made.placebo_recipe_id, call.variant_id, call.text, call.url, call.title, call.position_char, call.call_text,
       call.call_input, call.result
from dataset_releases release
join run_tools made on made.run_id = release.run_id and made.tool = :tool
cross join lateral (
    -- Planned separately, so that only the partitions of the two recipes are read.
    with versions as (
        select * from documents where document_id = :document_id or variant_of = :document_id
    )
    select version.document_id as variant_id, version.text, version.url, version.title, candidate.position_char, candidate.call_text,
           candidate.call_input, loss.result
    from versions version
    join candidate_calls candidate
        on candidate.sampling_recipe_id = made.sampling_recipe_id and candidate.document_id = version.document_id
       and candidate.call_id = :call_id
    join call_losses loss
        on loss.scoring_recipe_id = :scoring_recipe_id and loss.document_id = version.document_id and loss.call_id = candidate.call_id
) call
where release.release_id = :release_id
