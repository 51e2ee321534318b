-- What has been released, and which models were made of it?
-- One row a release and model, the newest first, with the number of calls of each tool.
create function what_has_been_released(run text default '')
    returns table (
        day date, release text, documents integer, calls text, lacking_tools text, model text,
            trained_on text,
        training_loss double precision)
    language sql stable
as $$
    select r.created_at::date as day,
           r.uri as release,
           r.documents,
           (select string_agg(c.tool || ' ' || c.calls, ', ' order by c.tool)
            from (select tool, count(*) as calls from release_calls where release_id = r.release_id
                group by tool) c) as calls,
           array_to_string(r.lacking_tools, ', ') as lacking_tools,
           m.uri as model,
           case when m.without_calls then 'texts without calls' when m.model_id is not null
               then 'texts with calls' end as trained_on,
           round(m.training_loss::numeric, 3) as training_loss
    from dataset_releases r
    left join finetuned_models m on m.release_id = r.release_id
    where named_run(run) = '' or r.release_id in (select made.release_id from run_releases made
        where made.run_id = run_or_newest(run))
    order by r.created_at desc, m.created_at desc
$$;
comment on function what_has_been_released is
    'What has been released, and which models were made of it? By this run; an empty name is every run.';
