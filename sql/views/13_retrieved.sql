create view retrieved as
select rt.run_id, rt.tool, rt.tool_version, answer.input as query, answer.results as passages, answer.reason,
    answer.message, used.result,
       used.result_rank, used.calls, used.texts, used.kept_calls, used.best_gain, answer.seconds,
           cast(answer.input_key as text) as input_key
from run_tools rt
cross join lateral (
    -- Planned separately, so that only the partitions of the tool's recipes are read.
    with asked as (
        select *
        from candidate_calls
        where sampling_recipe_id = rt.sampling_recipe_id and input_key is not null
    )
    select asked.input_key, loss.result, loss.result_rank, count(*) as calls,
        count(distinct asked.document_id) as texts,
           count(*) filter (
               where run_keeps(loss.reason, loss.gain_bound, rt.keep_threshold, loss.probability_with,
                   placebo.probability)) as kept_calls,
           max(call_gain(loss.gain_bound, loss.probability_with,
               placebo.probability)) filter (where loss.reason is null) as best_gain
    from asked
    join run_tool_documents member
        on member.run_id = rt.run_id and member.tool = rt.tool and member.variant_id = asked.document_id
    left join call_losses loss
        on loss.scoring_recipe_id = rt.scoring_recipe_id and loss.document_id = asked.document_id
            and loss.call_id = asked.call_id
    left join call_information placebo
        on placebo.placebo_recipe_id = rt.placebo_recipe_id and placebo.document_id = asked.document_id
       and placebo.call_id = asked.call_id
    group by asked.input_key, loss.result, loss.result_rank
) used
join call_results answer
    on answer.tool = rt.tool and answer.tool_version = rt.tool_version and answer.input_key = used.input_key;
comment on view retrieved is
    'What the tool of a run answered to each query, and which of it the calls used: one row for each result '
    'that was used, and one if none was. For WikiSearch the answers are passages. Give run_id and tool.';
comment on column retrieved.query is 'The effective input of the calls: what the tool received.';
comment on column retrieved.passages is 'What the tool answered, best first; empty if it had no answer.';
comment on column retrieved.reason is 'Why there is no answer; null if there is one.';
comment on column retrieved.result is
    'The one that the calls took: the first that does not repeat their text. Null if they took none, or are '
    'not scored yet.';
comment on column retrieved.calls is 'Candidate calls of the run with this query and result.';
comment on column retrieved.texts is 'Texts that hold them.';
comment on column retrieved.kept_calls is 'Of calls those that are kept at the run''s threshold.';
comment on column retrieved.best_gain is
    'The largest gain among them, by the run''s keep rule; null if none was scored.';
comment on column retrieved.input_key is
    'Key of call_results, with the tool and its version; candidates.input_key names the calls.';
call inherit_comments('retrieved', 'call_results', 'run_tools', 'call_losses');

create function retrieved_of(run text default '')
    returns setof retrieved
    language sql stable parallel safe
begin atomic
    select * from retrieved where run_id = run_or_newest(run);
end;
comment on function retrieved_of is 'The view retrieved about one run, as scored_calls_of.';
