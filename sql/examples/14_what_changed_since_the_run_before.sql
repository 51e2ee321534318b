-- What changed since the run before?
-- Places of texts at which the release differs from that of the run that it is compared with, by tool and
-- reason. Or from any earlier run on.
create function what_changed_since_the_run_before(run text default '', before text default '')
    returns table (
        tool text, change text, reason text, places bigint, texts bigint, such_as text)
    language sql stable
as $$
    select coalesce(tool, tool_before) as tool, change, reason, count(*) as places,
        count(distinct document_id) as texts, min(detail) as such_as
    from annotation_runs now
    cross join lateral run_comparison_between(now.run_id, coalesce(nullif(before, ''), now.previous_run_id))
    where now.run_id = run_or_newest(run) and (before <> '' or now.finished_at is not null)
    group by 1, 2, 3
    order by 1, 2, places desc, 3
$$;
comment on function what_changed_since_the_run_before is
    'What changed since the run before? About this run, compared with an earlier one; empty names are the '
    'newest run that ended well, and the run that it is compared with.';
