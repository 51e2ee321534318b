-- The next texts with a kept call of one tool in one run, and those calls, in the order of the texts' ids.
with kept as (
    select
        loss.document_id,
        jsonb_agg(
            jsonb_build_object('position_char', call.position_char, 'input', call.call_input, 'result', loss.result)
            order by call.position_char, call.call_id
        ) as calls
    from run_tools registered
    join call_losses loss on loss.scoring_recipe_id = registered.scoring_recipe_id
    join candidate_calls call on call.sampling_recipe_id = registered.sampling_recipe_id and call.call_id = loss.call_id
    join run_documents member on member.run_id = registered.run_id and member.document_id = loss.document_id
    where registered.run_id = :run_id
      and registered.tool = :tool
      and loss.reason is null
      and loss.loss_reduction >= registered.keep_threshold
      and loss.document_id > cast(:after as uuid)
    group by loss.document_id
    order by loss.document_id
    limit :page_size
)
select document.document_id, document.text, kept.calls
from kept
join documents document on document.document_id = kept.document_id
order by document.document_id
