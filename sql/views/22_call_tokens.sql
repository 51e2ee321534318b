create function call_tokens_of(run text default '')
    returns table (
        run_id text, tool text, document_id text, call_id text, place integer, token text,
        weight double precision, without_call real, without_result real, with_result real,
        without_call_full_context real)
    language sql stable parallel safe
begin atomic
    select rt.run_id, rt.tool, token.*
    from planned_run(run) chosen
    cross join planned_recipes(planned_run(run)) own_recipes
    join run_tools rt on chosen is null or rt.run_id = chosen
    cross join lateral (
        -- Planned separately, so that only the partition of the tool's recipe is read.
        with scored as (
            select * from call_losses where scoring_recipe_id = rt.scoring_recipe_id and token_log_probabilities is not null
              and (own_recipes is null or scoring_recipe_id = any (own_recipes))
        )
        select cast(member.document_id as text) as document_id, cast(scored.call_id as text) as call_id, place, scored.scored_tokens[place] as token,
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
    ) token
    where run is null or is_planned_for(run, chosen, own_recipes);
end;
comment on function call_tokens_of is 'The view call_tokens about one run, as scored_calls_of.';

create view call_tokens as
select * from call_tokens_of(null);
comment on view call_tokens is 'What the losses of the calls of each run are made of: one row for each of the at most five tokens behind a call, with its natural log probabilities. A loss is minus the sum of weight times log probability. Pruned calls have the terms that were computed; a run whose parameter token_log_probabilities is off has no rows. Give run_id and tool.';
comment on column call_tokens.place is 'Which token behind the call, from 1.';
comment on column call_tokens.token is 'Its text; null if it is not stored.';
comment on column call_tokens.weight is 'Its weight in each loss, by the scoring''s recipe; null if that is lost.';
comment on column call_tokens.without_call is 'Its log probability without the call; in a context window, given the last tokens before the call''s place alone. Null if it was not computed, as the three that follow.';
comment on column call_tokens.without_result is 'With the call, without its result.';
comment on column call_tokens.with_result is 'With the call and its result.';
comment on column call_tokens.without_call_full_context is 'Without the call, given the whole text before its place, if the others are in a context window.';
call inherit_comments('call_tokens', 'run_tool_documents', 'call_losses');
