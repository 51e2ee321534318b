-- Which calls help most?
-- The kept calls that gain most, in their sentences, in nats.
create function which_calls_help_most(run text default '')
    returns table (
        tool text, gain double precision, sentence text)
    language sql stable
as $$
    select t.tool, round(best.gain::numeric, 2) as gain,
        right(best.text_before, 60) || ' [' || best.call_text || ' -> ' || best.result || ']'
        || left(best.text_after, 60) as sentence
    from run_tools t
    cross join lateral best_kept_calls(t.run_id, t.tool, 10) best
    where t.run_id = run_or_newest(run)
    order by best.gain desc, best.call_id
    limit 10
$$;
comment on function which_calls_help_most is
    'Which calls help most? About this run; an empty name is the newest run that ended well.';
