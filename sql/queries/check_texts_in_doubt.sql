-- The next texts that check_texts left out, in the order of their ids, with the calls that would be released.
select document.document_id, document.text, calls.positions, calls.inputs, calls.results
from (
    select document_id
    from checked_work
    where is_releasable and document_id > cast(:after as uuid)
    group by document_id
    having not bool_and(is_plainly_written is true)
    order by document_id
    limit :page_size
) doubtful
join documents document on document.document_id = doubtful.document_id
cross join lateral (
    select
        array_agg(call.position_char order by call.position_char, call.call_id) as positions,
        array_agg(call.call_input order by call.position_char, call.call_id) as inputs,
        array_agg(loss.result order by call.position_char, call.call_id) as results
    from checked_work work
    join candidate_calls call on call.document_id = work.document_id and call.call_id = work.call_id
    join call_losses loss on loss.document_id = work.document_id and loss.call_id = work.call_id
    where work.document_id = doubtful.document_id
      and work.is_releasable
      and call.sampling_recipe_id = :sampling_recipe_id
      and loss.scoring_recipe_id = :scoring_recipe_id
) calls
order by document.document_id
