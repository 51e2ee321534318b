create view annotation_progress as
select stored.run_id, stored.tool, stored.step, stored.stage, stored.done, stored.total,
    null::bigint as tokens_done, null::bigint as tokens
from finished_run_progress stored
join stored_runs using (run_id)
union all
select rt.run_id, rt.tool, counted.step, counted.stage, counted.done, counted.total, counted.tokens_done,
    counted.tokens
from run_tools rt
join annotation_runs run using (run_id)
cross join lateral counted_progress(rt, run, null) counted
where not exists (select from stored_runs stored where stored.run_id = rt.run_id);
comment on view annotation_progress is
    'How far each stage is, for each tool of each run, in documents. A run is done where done = total '
    'everywhere; what earlier runs did under the same recipe counts as done.';
comment on column annotation_progress.stage is
    'filter, sample, execute, score or placebo; placebo only if the run asks for placebos, or has some.';
comment on column annotation_progress.total is
    'filter: the run''s documents; the others: those with a kept paragraph, as far as filtering has come.';
comment on column annotation_progress.tokens_done is
    'About how many tokens the filter kept of those that are done (about_tokens). Null for the filter, and '
    'for a finished run.';
comment on column annotation_progress.tokens is
    'The same of all: the share of the work that is done is tokens_done of tokens, since a text may be a '
    'hundred times as long as another.';
call inherit_comments('annotation_progress', 'finished_run_progress');
