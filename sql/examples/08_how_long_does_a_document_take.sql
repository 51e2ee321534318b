-- How long does a document take?
-- Seconds of work by tool and stage, over the documents of a run, whichever run did the work.
create function how_long_does_a_document_take(run text default '')
    returns table (
        tool text, stage text, documents bigint, seconds_a_document double precision, hours double precision)
    language sql stable
as $$
    select t.tool, work.stage, work.documents,
        round((work.seconds / work.documents)::numeric, 3) as seconds_a_document,
           round((work.seconds / 3600)::numeric, 3) as hours
    from run_tools t
    cross join lateral work_of_stages(t) work
    where t.run_id = run_or_newest(run)
    order by t.tool, work.step
$$;
comment on function how_long_does_a_document_take is
    'How long does a document take? About this run; an empty name is the newest run that ended well.';
