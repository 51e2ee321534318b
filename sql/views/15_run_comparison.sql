create view run_comparison as
select now.run_id, now.previous_run_id as before_run_id, true as is_previous_run, place.*
from annotation_runs now
cross join lateral run_comparison_between(now.run_id, now.previous_run_id) place
where now.finished_at is not null;
comment on view run_comparison is
    'Each finished run and the run before it, place by place: one row for each place of a text at which '
    'their releases differ. Give run_id: each run is compared anew. Any two runs: run_comparison_between.';
comment on column run_comparison.before_run_id is
    'The run before; null if there is none, and every call is new.';
comment on column run_comparison.change is
    'new: only the later release has a call here. gone: only the earlier one has. changed: both have, '
    'another call or the same with another result.';
comment on column run_comparison.position_char is
    'The character of documents.text before which the calls stand, from 0; null if the recipe''s rows were '
    'dropped.';
comment on column run_comparison.tool is
    'The tool of the later release''s call; null if the call is gone. So are the four that follow.';
comment on column run_comparison.tool_before is
    'The tool of the earlier release''s call; null if the call is new. So are the four that follow.';
comment on column run_comparison.call_text_before is 'The earlier release''s call.';
comment on column run_comparison.result_before is 'Its result.';
comment on column run_comparison.gain_before is 'What it gains, by the keep rule of its run.';
comment on column run_comparison.call_id_before is 'Its id.';
comment on column run_comparison.reason is
    'Why, as in release_changes; of a changed place the reason of the side that says more than '
    'better_call_at_position.';
comment on column run_comparison.detail is 'What release_changes.detail says with that reason.';
call inherit_comments('run_comparison', 'release_changes');
