create view release_changes as
select now.run_id, now.previous_run_id as before_run_id, true as is_previous_run,
       changed.is_added, changed.tool, cast(changed.document_id as text) as document_id,
           cast(changed.call_id as text) as call_id,
       changed.position_char, changed.call_text, changed.result, changed.gain, changed.reason, changed.detail
from annotation_runs now
cross join lateral release_changes_between(now.run_id, now.previous_run_id) changed
where now.finished_at is not null;
comment on view release_changes is
    'The calls that only one of the releases of a finished run and of the run before it holds, with the '
    'reason: the same as `toolformer-ops changes`. Give run_id: each run is compared anew. Any two runs: '
    'release_changes_between.';
comment on column release_changes.run_id is 'The later run.';
comment on column release_changes.before_run_id is
    'The run before; null if there is none, and every call is added.';
comment on column release_changes.is_previous_run is
    'Always true: the earlier run is annotation_runs.previous_run_id.';
comment on column release_changes.is_added is
    'Whether the later run''s release holds the call; else the earlier one''s does.';
comment on column release_changes.document_id is 'The text.';
comment on column release_changes.call_id is 'The call.';
comment on column release_changes.position_char is
    'The character of documents.text before which it stands, from 0. Null, as the three that follow, if the '
    'recipe''s rows were dropped.';
comment on column release_changes.result is 'Its result.';
comment on column release_changes.gain is 'What it gains, by the keep rule of its run.';
comment on column release_changes.reason is
    'The first reason, in the order in which a run decides, for which the run without the call does not '
    'release it; runs/changes.py has their words.';
comment on column release_changes.detail is
    'Both thresholds or results, the record''s id, the better call, or what differs in the recipe; else '
    'null.';
call inherit_comments('release_changes', 'run_tools', 'candidate_calls');
