-- Two runs place by place: how many places changed by kind and reason (is_count), and a page of places in the order of their texts.
with compared as materialized (
    select change, document_id, coalesce(position_char, -1) as place, position_char, tool, call_text, result, loss_reduction, call_id, tool_before,
           call_text_before, result_before, loss_reduction_before, call_id_before, reason, detail
    from run_comparison
    where run_id = :run_id and before_run_id = :before_run_id
),
page as (
    select *
    from compared
    where (cast(:reason as text) is null or reason = :reason)
      and (cast(:change as text) is null or change = :change)
      and (document_id, place) > (cast(:after_document_id as uuid), :after_position)
    order by document_id, place
    limit :at_most
)
select true as is_count, change, reason, count(*) as places, null::uuid as document_id, null::integer as position_char,
       null as tool, null as call_text, null as result, null::double precision as loss_reduction, null::uuid as call_id, null as tool_before,
       null as call_text_before, null as result_before, null::double precision as loss_reduction_before, null::uuid as call_id_before,
       null as detail, null as text_before, null as text_after
from compared
group by change, reason
union all
select false, page.change, page.reason, null, page.document_id, page.position_char, page.tool, page.call_text, page.result,
       page.loss_reduction, page.call_id, page.tool_before, page.call_text_before, page.result_before, page.loss_reduction_before,
       page.call_id_before, page.detail,
       substr(document.text, greatest(page.position_char - 100, 0) + 1, least(page.position_char, 100)),
       substr(document.text, page.position_char + 1, 100)
from page
left join documents document using (document_id)
order by is_count desc, places desc, document_id, position_char nulls first
