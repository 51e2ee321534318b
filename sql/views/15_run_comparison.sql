create view run_comparison as
select run_id, before_run_id, is_previous_run,
       case when bool_and(is_added) then 'new' when not bool_or(is_added) then 'gone' else 'changed' end as change,
       document_id, position_char,
       max(tool) filter (where is_added) as tool,
       max(call_text) filter (where is_added) as call_text,
       max(result) filter (where is_added) as result,
       max(loss_reduction) filter (where is_added) as loss_reduction,
       max(call_id) filter (where is_added) as call_id,
       max(tool) filter (where not is_added) as tool_before,
       max(call_text) filter (where not is_added) as call_text_before,
       max(result) filter (where not is_added) as result_before,
       max(loss_reduction) filter (where not is_added) as loss_reduction_before,
       max(call_id) filter (where not is_added) as call_id_before,
       -- Of a changed place, one side may only say that the other's call is better there; then the other side says why.
       (array_agg(reason order by reason = 'better_call_at_position', is_added desc))[1] as reason,
       (array_agg(detail order by reason = 'better_call_at_position', is_added desc))[1] as detail
from release_changes
group by run_id, before_run_id, is_previous_run, document_id, position_char,
         case when position_char is null then call_id end;  -- rows were dropped: nobody knows the place
comment on view run_comparison is 'Two runs place by place: one row for each place of a text at which their releases differ. Give run_id, and before_run_id or is_previous_run: each pair of runs is compared anew.';
comment on column run_comparison.before_run_id is 'The earlier run; null for the comparison with no run, in which every call is new.';
comment on column run_comparison.change is 'new: only the later release has a call here. gone: only the earlier one has. changed: both have, another call or the same with another result.';
comment on column run_comparison.position_char is 'The character of documents.text before which the calls stand, from 0; null if the recipe''s rows were dropped.';
comment on column run_comparison.tool is 'The tool of the later release''s call; null if the call is gone. So are the four that follow.';
comment on column run_comparison.tool_before is 'The tool of the earlier release''s call; null if the call is new. So are the four that follow.';
comment on column run_comparison.call_text_before is 'The earlier release''s call.';
comment on column run_comparison.result_before is 'Its result.';
comment on column run_comparison.loss_reduction_before is 'Its loss reduction, nats.';
comment on column run_comparison.call_id_before is 'Its id.';
comment on column run_comparison.reason is 'Why, as in release_changes; of a changed place the reason of the side that says more than better_call_at_position.';
comment on column run_comparison.detail is 'What release_changes.detail says with that reason.';
call inherit_comments('run_comparison', 'release_changes');
