-- What became of the candidate calls?
-- By tool and outcome, with each reason and, of kept calls, what the release did with them; the most frequent
-- first.
create function what_became_of_the_candidates(run text default '')
    returns table (
        tool text, outcome text, reason text, release_outcome text, calls bigint, texts bigint)
    language sql stable
as $$
    select tool, outcome, reason, release_outcome, count(*) as calls, count(distinct document_uuid) as texts
    from candidates_of(run)
    group by tool, outcome, reason, release_outcome
    order by tool, calls desc, outcome, reason, release_outcome
$$;
comment on function what_became_of_the_candidates is
    'What became of the candidate calls? About this run; an empty name is the newest run that ended well.';
