create view chained_calls as
select rt.run_id, rt.tool, cast(call.document_id as text) as document_id,
    cast(call.call_id as text) as call_id,
       run.chained_release_id as release_id, cast(chained.source_document_id as text) as source_document_id,
           parent.tool as parent_tool,
       cast(parent.call_id as text) as parent_call_id
from annotation_runs run
join run_tools rt on rt.run_id = run.run_id
cross join lateral (
    -- The recipe is a constant in it, so that only its partition is read.
    with of_recipe as (
        select document_id, call_id, parent_call
        from candidate_calls
        where sampling_recipe_id = rt.sampling_recipe_id and parent_call is not null
    )
    select * from of_recipe
) call
join chained_texts chained on chained.release_id = run.chained_release_id
    and chained.document_id = call.document_id
left join lateral (
    -- In the order in which a release puts calls into a text.
    select held.tool, held.call_id
    from release_calls held
    -- The rows of a tool that reads url and date are those of a variant.
    join documents version on version.document_id = held.document_id or version.variant_of = held.document_id
    join recipes scoring on scoring.recipe_id = held.scoring_recipe_id
    join recipes execution on execution.recipe_id = scoring.parent_recipe_id
    join candidate_calls placed
        on placed.sampling_recipe_id = execution.parent_recipe_id and placed.document_id = version.document_id
       and placed.call_id = held.call_id
    where held.release_id = chained.release_id and held.document_id = chained.source_document_id
    order by placed.position_char, cast(held.call_id as text)
    offset call.parent_call
    limit 1
) parent on true
where run.chained_release_id is not null;
comment on view chained_calls is
    'Every candidate call of a run with chains, with its parent: the call of the release whose result its '
    'input holds. Join kept_calls by run_id and call_id for those that are kept.';
comment on column chained_calls.run_id is 'The run with chains.';
comment on column chained_calls.tool is 'The tool''s name.';
comment on column chained_calls.document_id is 'The text, with the calls of the release.';
comment on column chained_calls.call_id is 'The call.';
comment on column chained_calls.release_id is 'The release that holds the parent.';
comment on column chained_calls.source_document_id is 'The text without calls.';
comment on column chained_calls.parent_tool is 'The parent''s tool.';
comment on column chained_calls.parent_call_id is
    'The parent. Null if the release was withdrawn and its calls are forgotten.';
