create view candidates as
select rt.run_id, rt.tool, cast(call.text_id as text) as document_id, cast(call.call_id as text) as call_id,
       substr(call.text, greatest(call.position_char - 120, 0) + 1,
           least(call.position_char, 120)) as text_before,
       call.call_text, call.result, substr(call.text, call.position_char + 1, 120) as text_after,
       call.outcome,
       case call.outcome
           when 'sampled' then (
               select min(failed.reason)
               from failed_documents failed
               where failed.document_id = call.document_id
                 and failed.recipe_id in (rt.execution_recipe_id, rt.scoring_recipe_id)
           )
           else call.reason
       end as reason,
       case
           when call.outcome <> 'kept' then null
           when call.is_chosen then coalesce(call.left_out, 'released')
           when call.input_only_after then 'input_only_after'
           when made.release_id is null then 'no_release'
           when rt.tool = any (release.lacking_tools) or run.parameters ->> 'max_examples_per_tool' is null
               then 'not_in_release'
           else 'above_max_examples'
       end as release_outcome,
       call.loss_without_call, call.loss_without_result, call.loss_with_result, call.loss_reduction,
       call.reduction_bound, call.gain_bound,
       case when call.reason is null then call_gain(call.gain_bound, call.probability_with,
           call.probability) end as gain,
       call.probability_without, call.probability as placebo_probability, call.probability_with,
       call.placebo_reduction, call.information, coalesce(call.placebos, 0) as placebos,
       rt.keep_threshold, rt.keep_rule,
       call.position_char, call.position_token, call.position_probability, call.paragraph, call.call_input,
       call.effective_input, cast(call.input_key as text) as input_key, call.sample_count, call.proposed_by,
       call.input_only_after,
       call.result_rank, call.loss_without_call_full_context, call.number_format, call.url,
       call.document_date,
       cast(call.document_id as text) as variant_id, call.ordinal, rt.sampling_recipe_id,
       rt.execution_recipe_id,
       rt.scoring_recipe_id,
       result_follows(call.result, substr(call.text, call.position_char + 1, 120)) as result_follows,
       call.text_id as document_uuid, call.document_id as variant_uuid, call.call_id as call_uuid
from run_tools rt
join annotation_runs run on run.run_id = rt.run_id
left join run_releases made on made.run_id = rt.run_id
left join dataset_releases release on release.release_id = made.release_id
cross join lateral (
    -- With a `with`, as in scored_calls.
    with sampled as (select * from candidate_calls where sampling_recipe_id = rt.sampling_recipe_id),
    loss as (select * from call_losses where scoring_recipe_id = rt.scoring_recipe_id),
    placebo as (select * from call_information where placebo_recipe_id = rt.placebo_recipe_id),
    choice as (select call_id, true as is_chosen, left_out from release_choices
        where release_id = made.release_id),
    member as (
        select document_id as text_id, variant_id as document_id, ordinal
        from run_tool_documents
        where run_id = rt.run_id and tool = rt.tool
    )
    select *,
           call_outcome(
               loss.call_id is not null, loss.reason, loss.gain_bound, rt.keep_threshold,
                   loss.probability_with,
               placebo.probability) as outcome
    from sampled
    join member using (document_id)
    left join loss using (document_id, call_id)
    left join placebo using (document_id, call_id)
    left join choice using (call_id)
    left join documents using (document_id)
) call;
comment on view candidates is
    'Every candidate call of every run, with what became of it. Give run_id and tool: only their '
    'partitions are read; with document_uuid only the calls of that text.';
comment on column candidates.outcome is
    'What happened to the call before the release, in the order of the stages. sampled: not scored, yet '
    'or because its text was given up. no_result: the tool gave none, or none that does not repeat the '
    'text; or the run does not score the call, since its input stands only after it. not_finite: a loss '
    'is not a finite number. pruned: provably cannot reach the run''s prune_below. below_threshold: '
    'gains less than keep_threshold. like_a_placebo: gains less than keep_threshold beyond its placebo, '
    'or has none (keep rule probability). kept: kept by the run''s keep rule; these are the calls of '
    'kept_calls.';
comment on column candidates.reason is
    'Why it has no losses that count. sampled: process_killed or out_of_memory if its text was given up. '
    'no_result, not_finite, pruned: as in call_losses.reason. Else null.';
comment on column candidates.release_outcome is
    'What the run''s release did with a kept call. released: it is in it. input_only_after: it is never '
    'released. result_has_other_sign: the text continues with the number of the other sign. '
    'result_does_not_follow: the text does not continue with its result, and the run asks for that '
    '(require_following). better_call_at_position: another kept call of any tool at its place saves more '
    '(of equal ones: has the smaller id). holds_evaluation_data: its text shares words with evaluation '
    'data, and the release leaves it out. The release stored these (release_choices). no_release: the run '
    'has none, yet. above_max_examples: the tool has max_examples_per_tool texts without it. '
    'not_in_release: the release lacks the tool, or was made before the call was scored. Null for a call '
    'that is not kept.';
comment on column candidates.result is
    'What the tool answered: the result that was taken; null if there is none.';
call inherit_comments('candidates', 'scored_calls', 'run_tool_documents', 'call_losses', 'candidate_calls');

create function candidates_of(run text default '')
    returns setof candidates
    language sql stable parallel safe
begin atomic
    select * from candidates where run_id = run_or_newest(run);
end;
comment on function candidates_of is 'The view candidates about one run, as scored_calls_of.';
