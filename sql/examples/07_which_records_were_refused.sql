-- Which records of my corpus were refused?
-- By reason, with one place to look at, for the corpus of a run.
create function which_records_were_refused(run text default '')
    returns table (
        reason text, records bigint, such_as text, detail text)
    language sql stable
as $$
    select counted.reason, cast(sum(counted.records) as bigint) as records, min(such.place) as such_as,
        min(such.detail) as detail
    from rejected_records counted
    left join lateral (
        select file_uri || ' line ' || line as place, detail
        from rejected_documents r
        where r.corpus_id = counted.corpus_id and r.file_uri = counted.file_uri and r.reason = counted.reason
        order by line
        limit 1
    ) such on true
    where counted.corpus_id = (select corpus_id from annotation_runs where run_id = run_or_newest(run))
    group by counted.reason
    order by records desc, counted.reason
$$;
comment on function which_records_were_refused is
    'Which records of my corpus were refused? About this run; an empty name is the newest run that ended '
    'well.';
