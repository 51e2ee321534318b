-- How long does a document take?
-- Seconds of work by tool and stage, over the documents of a run, whichever run did the work.
create function how_long_does_a_document_take(run text default '')
    returns table (
        tool text, stage text, documents bigint, seconds_a_document double precision, hours double precision)
    language sql stable
as $$
    select t.tool, l.stage, count(*) as documents, round(avg(l.seconds)::numeric, 3) as seconds_a_document,
           round((sum(l.seconds) / 3600)::numeric, 3) as hours
    from run_tools t
    cross join stages_of(t) did
    join stage_ledger l on l.stage = did.stage and l.recipe_id = did.recipe_id
    join run_tool_documents d on d.run_id = t.run_id and d.tool = t.tool and d.variant_id = l.document_id
    where t.run_id = run_or_newest(run)
    group by t.tool, did.step, l.stage
    order by t.tool, did.step
$$;
comment on function how_long_does_a_document_take is 'How long does a document take? About this run; an empty name is the newest run that ended well.';
