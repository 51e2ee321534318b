create view scored_calls as
select rt.run_id,
       rt.tool,
       call.document_id,
       call.call_id,
       -- the 120 characters before the call, and the 120 after it
       substr(call.text, greatest(call.position_char - 120, 0) + 1, least(call.position_char, 120)) as text_before,
       call.call_text,
       call.result,
       substr(call.text, call.position_char + 1, 120) as text_after,
       call.loss_without_call,
       call.loss_without_result,
       call.loss_with_result,
       call.loss_reduction,
       call.placebo_reduction,
       call.information,
       call.placebos,
       rt.keep_threshold,
       rt.tau_information,
       (select cost.cost_threshold from call_costs cost where cost.run_id = rt.run_id and cost.tool = rt.tool) as cost_threshold,
       call.position_char,
       call.position_token,
       call.position_probability,
       call.paragraph,
       call.call_input,
       call.effective_input,
       call.sample_count,
       call.input_only_after,
       call.result_rank,
       call.loss_without_call_full_context,
       call.number_format,
       call.token_log_probabilities,
       call.url,
       call.document_date,
       rt.sampling_recipe_id,
       rt.execution_recipe_id,
       rt.scoring_recipe_id
from run_tools rt
cross join lateral (
    -- Postgres plans a subquery with a `with` separately. The recipes are constants in it, so that only their partitions are read; a
    -- direct join with run_tools would read all of them.
    with scored as (
        select * from call_losses where scoring_recipe_id = rt.scoring_recipe_id and reason is null
    )
    select member.document_id, candidate.call_id, candidate.call_text, candidate.position_char, candidate.position_token,
           candidate.position_probability, candidate.paragraph, candidate.call_input, candidate.effective_input,
           candidate.sample_count, candidate.input_only_after,
           scored.result, scored.result_rank, scored.loss_without_call, scored.loss_without_result, scored.loss_with_result,
           scored.loss_without_call_full_context, scored.loss_reduction, scored.number_format,
           scored.token_log_probabilities,
           -- Three subqueries: one that a query does not ask for is not computed.
           (select avg(placebo.reduction)
            from placebo_losses placebo
            where placebo.placebo_recipe_id = rt.placebo_recipe_id and placebo.document_id = scored.document_id
              and placebo.call_id = scored.call_id and placebo.information is not null) as placebo_reduction,
           (select avg(placebo.information)
            from placebo_losses placebo
            where placebo.placebo_recipe_id = rt.placebo_recipe_id and placebo.document_id = scored.document_id
              and placebo.call_id = scored.call_id) as information,
           (select count(placebo.information)
            from placebo_losses placebo
            where placebo.placebo_recipe_id = rt.placebo_recipe_id and placebo.document_id = scored.document_id
              and placebo.call_id = scored.call_id) as placebos,
           document.text, document.url, document.document_date
    from scored
    join candidate_calls candidate
        on candidate.sampling_recipe_id = rt.sampling_recipe_id and candidate.document_id = scored.document_id
       and candidate.call_id = scored.call_id
    join run_tool_documents member
        on member.run_id = rt.run_id and member.tool = rt.tool and member.variant_id = scored.document_id
    join documents document on document.document_id = scored.document_id  -- the variant, where the tool reads url and date
) call;
comment on view scored_calls is 'Every scored call of every run, kept or not, with the text around it and its losses. Below the run''s prune_below calls are missing: they are in call_losses, with their bound and the reason pruned_below.';
comment on column scored_calls.run_id is 'The run.';
comment on column scored_calls.tool is 'The tool''s name.';
comment on column scored_calls.document_id is 'The document.';
comment on column scored_calls.call_id is 'The call.';
comment on column scored_calls.text_before is 'At most 120 characters of the text before the call.';
comment on column scored_calls.call_text is 'The call, such as Calculator(400 / 1400).';
comment on column scored_calls.result is 'What the tool answered.';
comment on column scored_calls.text_after is 'At most 120 characters of the text after the call.';
comment on column scored_calls.loss_without_call is 'L(nothing), nats.';
comment on column scored_calls.loss_without_result is 'L(e(c, "")), nats.';
comment on column scored_calls.loss_with_result is 'L+ = L(e(c, r)), nats.';
comment on column scored_calls.loss_reduction is 'min(loss_without_call, loss_without_result, loss_without_call_full_context where there is one) - loss_with_result, nats.';
comment on column scored_calls.placebo_reduction is 'The mean placebo reduction, nats: what results of other calls save in its place (docs/placebo.md). Null without placebos.';
comment on column scored_calls.information is 'The mean over its placebos of L(e(c, r'')) - L(e(c, r)), nats: what this result saves beyond any other of its kind. Null without placebos.';
comment on column scored_calls.placebos is 'Number of placebos that the two means are of.';
comment on column scored_calls.tau_information is 'The run keeps calls with at least so much information, nats; null: the paper''s keep rule alone.';
comment on column scored_calls.keep_threshold is 'The run keeps calls of the tool that save at least this, nats: tau_f, or cost_threshold where that is more.';
comment on column scored_calls.cost_threshold is 'What the run asks for, for the cost of a call of the tool, nats (call_costs); null where it asks for nothing.';
comment on column scored_calls.position_char is 'The character of documents.text before which the call is inserted, from 0.';
comment on column scored_calls.position_token is 'The token before which the call is inserted, from 0.';
comment on column scored_calls.position_probability is 'p_i, the probability that a call starts here, 0 to 1.';
comment on column scored_calls.paragraph is 'The paragraph''s number in the document, from 0.';
comment on column scored_calls.call_input is 'The call''s input as the model wrote it.';
comment on column scored_calls.effective_input is 'The input that the tool received.';
comment on column scored_calls.sample_count is 'Number of samples that are this call at this position.';
comment on column scored_calls.input_only_after is 'Whether the input occurs in the text only after the call.';
comment on column scored_calls.result_rank is 'Which of the tool''s results was taken, from 0.';
comment on column scored_calls.loss_without_call_full_context is 'L(nothing) given the whole text before the call, nats; null where the other losses are not in a context window.';
comment on column scored_calls.number_format is 'float32, bfloat16 or float16: the numbers in which the losses were computed.';
comment on column scored_calls.token_log_probabilities is 'Natural log probabilities of the at most five tokens that the losses weight: [1][1..5] without the call, [2] without the result, [3] with the result, [4] without the call given the whole text, where there is that loss. Null: not stored.';
comment on column scored_calls.url is 'The address of the record: for a tool that reads the record, at the run''s version of the corpus; for others that of the first record with this text.';
comment on column scored_calls.document_date is 'The date of the record, likewise.';
comment on column scored_calls.sampling_recipe_id is 'Recipe of the sampling.';
comment on column scored_calls.execution_recipe_id is 'Recipe of the execution.';
comment on column scored_calls.scoring_recipe_id is 'Recipe of the scoring.';
