-- What is shown of these calls of one tool: the text around them, result, losses, and whether the run's release holds them.
select cast(:tool as text) as tool, coalesce(document.variant_of, document.document_id) as document_id, call.document_id as variant_id,
       call.call_id, call.position_char, call.position_token, call.position_probability, call.paragraph, call.call_text, call.call_input,
       call.effective_input, call.sample_count, call.input_only_after,
       substr(document.text, greatest(call.position_char - 160, 0) + 1, least(call.position_char, 160)) as text_before,
       call.position_char > 160 as is_cut_before,
       substr(document.text, call.position_char + 1, 160) as text_after,
       length(document.text) > call.position_char + 160 as is_cut_after,
       left(document.url, 500) as url, document.document_date,
       loss.call_id is not null as has_losses, loss.reason, loss.result, loss.result_rank,
       loss.loss_without_call, loss.loss_without_result, loss.loss_with_result, loss.loss_without_call_full_context, loss.loss_reduction,
       loss.reduction_bound, loss.number_format, placebo.placebos, placebo.loss_with_placebo, placebo.information,
       exists (
           select from release_calls held where held.release_id = cast(:release_id as text) and held.call_id = call.call_id
       ) as is_released
from unnest(cast(:document_ids as uuid[]), cast(:call_ids as uuid[])) as asked (document_id, call_id)
join candidate_calls call
    on call.sampling_recipe_id = :sampling_recipe_id and call.document_id = asked.document_id and call.call_id = asked.call_id
join documents document on document.document_id = asked.document_id
left join call_losses loss
    on loss.scoring_recipe_id = :scoring_recipe_id and loss.document_id = asked.document_id and loss.call_id = asked.call_id
cross join lateral (
    select count(placebo.information) as placebos,
           avg(placebo.loss_with_result) filter (where placebo.information is not null) as loss_with_placebo,
           avg(placebo.information) as information
    from placebo_losses placebo
    where placebo.placebo_recipe_id = cast(:placebo_recipe_id as text) and placebo.document_id = asked.document_id
      and placebo.call_id = asked.call_id
) placebo
