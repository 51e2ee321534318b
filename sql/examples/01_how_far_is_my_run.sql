-- How far is my run?
-- By tool and stage, in documents. Asked again, it shows what has been committed since.
create function how_far_is_my_run(run text default '')
    returns table (
        run_id text, tool text, stage text, done bigint, total bigint, percent double precision)
    language sql stable
as $$
    select run_id, tool, stage, done, total, round(100.0 * done / nullif(total, 0)) as percent
    from annotation_progress
    where run_id = run_or_newest(coalesce(nullif(named_run(run), ''),
        (select run_id from annotation_runs order by started_at desc limit 1)))
    order by tool, step
$$;
comment on function how_far_is_my_run is
    'How far is my run? About this run; an empty name is the newest run.';
