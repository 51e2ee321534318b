create view scored_calls as
select rt.run_id, rt.tool, cast(call.text_id as text) as document_id, cast(call.call_id as text) as call_id,
       substr(call.text, greatest(call.position_char - 120, 0) + 1,
           least(call.position_char, 120)) as text_before,
       call.call_text, call.result, substr(call.text, call.position_char + 1, 120) as text_after,
       call.loss_without_call, call.loss_without_result, call.loss_with_result, call.loss_reduction,
       call_gain(call.gain_bound, call.probability_with, call.probability) as gain,
       call.probability_without, call.probability as placebo_probability, call.probability_with,
       call.placebo_reduction, call.information, coalesce(call.placebos, 0) as placebos,
       call.position_char, call.position_token, call.position_probability, call.paragraph, call.call_input,
       call.effective_input, call.sample_count, call.proposed_by, call.input_only_after, call.result_rank,
       call.loss_without_call_full_context, call.number_format, call.url, call.document_date,
       cast(call.document_id as text) as variant_id, rt.sampling_recipe_id, rt.execution_recipe_id,
       rt.scoring_recipe_id,
       result_follows(call.result, substr(call.text, call.position_char + 1, 120)) as result_follows,
       call.text_id as document_uuid, call.document_id as variant_uuid, call.call_id as call_uuid,
       rt.keep_threshold, rt.keep_rule
from run_tools rt
cross join lateral (
    -- Postgres plans a subquery with a `with` separately, so that of each table the partition of the tool's
    -- recipe alone is read; a direct join with run_tools would read all of them. A left join of which no
    -- column is asked for is left out.
    with sampled as (select * from candidate_calls where sampling_recipe_id = rt.sampling_recipe_id),
    loss as (select * from call_losses where scoring_recipe_id = rt.scoring_recipe_id and reason is null),
    placebo as (select * from call_information where placebo_recipe_id = rt.placebo_recipe_id),
    member as (
        select document_id as text_id, variant_id as document_id
        from run_tool_documents
        where run_id = rt.run_id and tool = rt.tool
    )
    select *
    from loss
    join sampled using (document_id, call_id)
    join member using (document_id)
    left join placebo using (document_id, call_id)
    left join documents using (document_id)
) call;
comment on view scored_calls is
    'Every scored call of every run, kept or not, with the text around it and its losses. Those that a '
    'threshold would keep have a gain of at least that. Below the run''s prune_below calls are missing: '
    'they are in call_losses, with their bound and the reason pruned_below.';
comment on column scored_calls.text_before is 'At most 120 characters of the text before the call.';
comment on column scored_calls.result is 'What the tool answered.';
comment on column scored_calls.gain is
    'What the call gains by its run''s keep_rule: loss_reduction, nats, by paper; by probability the '
    'logarithm of probability_with divided by the larger of probability_without and placebo_probability. '
    'Null by probability without a placebo: such a call is not kept.';
comment on column scored_calls.placebo_probability is
    'By the keep rule probability: the probability of the next tokens with the result of a call in '
    'another text (call_information.probability).';
comment on column scored_calls.text_after is 'At most 120 characters of the text after the call.';
comment on column scored_calls.result_follows is
    'Whether the text continues with the result within five words: equal, nearly (rounded), other_sign, '
    'no; null for a result that cannot stand in a text (the function result_follows).';
comment on column scored_calls.variant_id is
    'The document whose rows these are: of a corrected record, for a tool that reads url and date, '
    'another than document_id, the text. call_losses and candidate_calls have it as document_id, so a '
    'join with them is by this (variant_uuid).';
comment on column scored_calls.document_uuid is
    'The document as tables have it: for questions about one document, which are answered by an index, '
    'and for joins. Some clients read bytes.';
comment on column scored_calls.variant_uuid is
    'The variant as tables have it: with call_uuid the key of call_losses and candidate_calls.';
comment on column scored_calls.call_uuid is 'The call as tables have it.';
comment on column scored_calls.paragraph is 'The paragraph''s number in the document, from 0.';
comment on column scored_calls.url is
    'The address of the record: for a tool that reads the record, at the run''s version of the corpus; '
    'for others that of the first record with this text.';
comment on column scored_calls.document_date is 'The date of the record, likewise.';
call inherit_comments('scored_calls', 'run_tools', 'call_losses', 'call_information', 'candidate_calls');

create function scored_calls_of(run text default '')
    returns setof scored_calls
    language sql stable parallel safe
begin atomic
    select * from scored_calls where run_id = run_or_newest(run);
end;
comment on function scored_calls_of is
    'The view scored_calls about one run; an empty name is the newest run that ended well.';
