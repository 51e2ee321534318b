-- Another call's result for a call's place: the first placebo that the run scored there; where it scored none, the result of another call of
-- the tool in the release, drawn by the seed. No row where there is no other result.
select source_call_id, result
from (
    select 1 as choice, source.call_id as source_call_id, source.result, '' as place
    from placebo_losses placebo
    join placebo_pool_results source on source.placebo_recipe_id = placebo.placebo_recipe_id and source.source = placebo.source
    where placebo.placebo_recipe_id = :placebo_recipe_id and placebo.document_id = :variant_id and placebo.call_id = :call_id
      and source.result <> :result
    union all
    select 2, other.call_id, loss.result, other.place
    from (
        select document_id, call_id, scoring_recipe_id, md5(cast(:seed as text) || cast(:call_id as text) || call_id::text) as place
        from release_calls
        where release_id = :release_id and tool = :tool and document_id <> :document_id
        order by place
        limit 50
    ) other
    cross join lateral (
        with versions as (
            select document_id from documents where document_id = other.document_id or variant_of = other.document_id
        )
        select losses.result
        from versions
        join call_losses losses
            on losses.scoring_recipe_id = other.scoring_recipe_id and losses.document_id = versions.document_id
           and losses.call_id = other.call_id
    ) loss
    where loss.result <> :result
) found
order by choice, place
limit 1
