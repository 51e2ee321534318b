create view scored_calls as
select rt.run_id,
       rt.tool,
       c.document_id,
       c.call_id,
       -- the end of what stands before the call, and the beginning of what follows
       substr(d.text, greatest(c.position_char - 120, 0) + 1, least(c.position_char, 120)) as text_before,
       c.call_text,
       l.result,
       substr(d.text, c.position_char + 1, 120) as text_after,
       l.loss_without_call,
       l.loss_without_result,
       l.loss_with_result,
       l.loss_reduction,
       rt.keep_threshold,
       c.position_char,
       c.position_token,
       c.position_probability,
       c.paragraph,
       c.call_input,
       c.effective_input,
       c.sample_count,
       c.input_only_after,
       l.result_rank,
       l.loss_without_call_full_context,
       l.number_format,
       d.url,
       d.document_date,
       rt.sampling_recipe_id,
       rt.execution_recipe_id,
       rt.scoring_recipe_id
from run_tools rt
join annotation_runs r on r.run_id = rt.run_id
join call_losses l on l.scoring_recipe_id = rt.scoring_recipe_id and l.reason is null
join candidate_calls c on c.sampling_recipe_id = rt.sampling_recipe_id and c.call_id = l.call_id
join corpus_documents cd on cd.corpus_id = r.corpus_id and cd.document_id = l.document_id
    and cd.ordinal < coalesce(r.document_limit, 2147483647)
join documents d on d.document_id = l.document_id;
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
comment on column scored_calls.keep_threshold is 'tau_f of the tool in this run, nats.';
comment on column scored_calls.position_char is 'The character of documents.text before which the call stands, from 0.';
comment on column scored_calls.position_token is 'The token before which the call stands, from 0.';
comment on column scored_calls.position_probability is 'p_i, the probability that a call starts here, 0 to 1.';
comment on column scored_calls.paragraph is 'The paragraph''s number in the document, from 0.';
comment on column scored_calls.call_input is 'The call''s input as the model wrote it.';
comment on column scored_calls.effective_input is 'What the tool was really asked.';
comment on column scored_calls.sample_count is 'How many samples gave this call at this position.';
comment on column scored_calls.input_only_after is 'Whether the input stands only after the call in the text.';
comment on column scored_calls.result_rank is 'Which of the tool''s results was taken, from 0.';
comment on column scored_calls.loss_without_call_full_context is 'L(nothing) given the whole text before the call, nats; null where the other losses are not in a context window.';
comment on column scored_calls.number_format is 'float32, bfloat16 or float16: the numbers in which the losses were computed.';
comment on column scored_calls.url is 'The document''s address.';
comment on column scored_calls.document_date is 'The document''s date.';
comment on column scored_calls.sampling_recipe_id is 'Recipe of the sampling.';
comment on column scored_calls.execution_recipe_id is 'Recipe of the execution.';
comment on column scored_calls.scoring_recipe_id is 'Recipe of the scoring.';
