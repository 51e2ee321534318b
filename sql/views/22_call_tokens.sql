create view call_tokens as
select rt.run_id, rt.tool, token.*
from run_tools rt
cross join lateral (
    -- Planned separately, so that only the partition of the tool's recipe is read.
    with scored as (
        select * from call_losses where scoring_recipe_id = rt.scoring_recipe_id
            and token_log_probabilities is not null
    )
    select cast(member.document_id as text) as document_id, cast(scored.call_id as text) as call_id, place,
        scored.scored_tokens[place] as token,
           cast(recipe.definition -> 'weights' ->> (place - 1) as double precision) as weight,
           scored.token_log_probabilities[1][place] as without_call,
           scored.token_log_probabilities[2][place] as without_result,
           scored.token_log_probabilities[3][place] as with_result,
           scored.token_log_probabilities[4][place] as without_call_full_context
    from scored
    join run_tool_documents member
        on member.run_id = rt.run_id and member.tool = rt.tool and member.variant_id = scored.document_id
    left join recipes recipe on recipe.recipe_id = rt.scoring_recipe_id
    cross join lateral generate_series(1, array_length(scored.token_log_probabilities, 2)) place
) token;
comment on view call_tokens is
    'What the losses of the calls of each run are made of: one row for each token after a call, at most '
    'five by the keep rule paper and ten by probability, with its natural log probabilities. A loss is '
    'minus the sum of weight times log probability. Pruned calls have the terms that were computed; a run '
    'whose parameter token_log_probabilities is off has no rows. Give run_id and tool.';
comment on column call_tokens.place is 'Which token after the call, from 1.';
comment on column call_tokens.token is 'Its text; null if it is not stored.';
comment on column call_tokens.weight is
    'Its weight in each loss, by the scoring''s recipe; null beyond the fifth token, and if the recipe is '
    'lost.';
comment on column call_tokens.without_call is
    'Its log probability without the call; in a context window, given the last tokens before the call''s '
    'place alone. Null if it was not computed, as the three that follow.';
comment on column call_tokens.without_result is 'With the call, without its result.';
comment on column call_tokens.with_result is 'With the call and its result.';
comment on column call_tokens.without_call_full_context is
    'Without the call, given the whole text before its place, if the others are in a context window.';
call inherit_comments('call_tokens', 'run_tool_documents', 'call_losses');

create function call_tokens_of(run text default '')
    returns setof call_tokens
    language sql stable parallel safe
begin atomic
    select * from call_tokens where run_id = run_or_newest(run);
end;
comment on function call_tokens_of is 'The view call_tokens about one run, as scored_calls_of.';
