-- The calls that a run keeps, also at another threshold.

create or replace function result_follows(result text, text_after text)
    returns text
    language plpgsql immutable parallel safe
as $$
declare
    near text;
    value numeric;
    date text[];
    words text;
    words_after text;
    is_whole boolean;
begin
    -- 1. A number: among the numbers of the five words after the call; 29 % is 29, and it is 0.29. A minus is
    --    written -5, −5, –5, -$5, minus 5
    --    or negative 5; the hyphen of 10-12, 5%-10% or F-16 and the minus of 10 minus 5 are no sign. (5) is
    --    5, and it is -5.
    is_whole := result ~ '^[1-9][0-9]{0,14}$';
    if is_whole or result ~ '^\s*[-−]?[0-9][0-9,]{0,40}(\.[0-9]{1,40})?\s*%?\s*$' then
        near := substring(left(text_after, 120) from '^\s*(?:\S+\s*){1,5}%?');
        if near is null then
            return 'no';
        end if;
        -- Most often it is a whole number, and none of another form is near: then the number is there with
        -- its digits, or is not. The rest of this case gives the same, and takes three times as long.
        if is_whole and near !~ '[-−–%(]|[0-9][.,][0-9]|[Mm]inus|[Nn]egative' then
            if strpos(near, result) > 0
               and strpos(regexp_replace(near, '(^|[^0-9]+)0*', ' ', 'g') || ' ', ' ' || result || ' ') > 0
                   then
                return 'equal';
            end if;
            return 'no';
        end if;
        if near !~ '[0-9]' then
            return 'no';
        end if;
        value := cast(translate(result, '−, %', '-') as numeric) / case when result ~ '%' then 100 else 1 end;
        return (
            select case
                when bool_or(near_number.number = value) then 'equal'
                when bool_or(near_number.resembles and sign(near_number.number) * sign(value) >= 0)
                    then 'nearly'
                when bool_or(near_number.resembles) then 'other_sign'
                else 'no'
            end
            from (
                select written.number,
                       abs(written.number) in (abs(value), round(abs(value), scale(written.number)))
                           or round(abs(written.number), scale(trim_scale(value))) = abs(value) as resembles
                from (
                    select trim_scale(minus * cast(translate(parts[2], ',',
                        '') as numeric) / divisor) as number
                    from regexp_matches(
                        near,
                        '(\(|(?<![[:alnum:]%)])[-−–]|(?<![0-9]\s)\m(?:[Mm]inus|[Nn]egative)\s+)?[$€£¥]?'
                            '((?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?)(\s*%?\)?%?)',
                                'g') written_number (parts)
                    cross join unnest(case when parts[3] ~ '%' then array[1, 100] else array[1] end) divisor
                    cross join unnest(
                        case when parts[1] = '(' and parts[3] ~ '\)' then array[1, -1]
                             when coalesce(parts[1], '(') = '(' then array[1]
                             else array[-1] end) minus
                ) written
            ) near_number);
    end if;
    -- 2. A day, of the Calendar: weekday, month, day, year. What a pattern needs is looked for first: to make
    --    a pattern takes longer.
    date := regexp_match(lower(result), '^today is ([a-z]+), ([a-z]+) ([0-9]{1,2}), ([0-9]{4})\.$');
    if date is not null then
        near := lower(substring(left(text_after, 120) from '^\s*(?:\S+\s*){1,5}'));
        if strpos(near, date[1]) > 0 and near ~ ('\m' || date[1] || '\M')
           or strpos(near, date[2]) > 0 and strpos(near, date[3]) > 0
              and (near ~ ('\m' || date[2] || '\W+' || date[3] || '(st|nd|rd|th)?\M')
                   or near ~ ('\m' || date[3] || '(st|nd|rd|th)?\W+(of\W+)?' || date[2] || '\M')) then
            return 'equal';
        end if;
        if (strpos(near, date[2]) > 0 or strpos(near, date[4]) > 0)
            and near ~ ('\m(' || date[2] || '|' || date[4] || ')\M') then
            return 'nearly';
        end if;
        return 'no';
    end if;
    -- 3. One to five words.
    words := btrim(regexp_replace(lower(result), '[^[:alnum:]]+', ' ', 'g'));
    if words <> '' and array_length(string_to_array(words, ' '), 1) <= 5 then
        words_after := btrim(regexp_replace(lower(left(text_after, 120)), '[^[:alnum:]]+', ' ', 'g')) || ' ';
        if strpos(words_after, words || ' ') > 0 and words_after ~ ('^(\S+ ){0,4}' || words || ' ') then
            return 'equal';
        end if;
        return 'no';
    end if;
    return null;
end
$$;
comment on function result_follows is
    'Whether a text continues with a result within its next five words. equal: with this number, or this '
    'word or name. nearly: with the number rounded. other_sign: with the number of the other sign. no: it does '
    'not. A day of the Calendar is equal to its weekday, or its month with its day, and nearly to its month '
    'or year. Null for another result of more than five words that is no number, which cannot stand there. '
    'A percentage is its number and a hundredth of that.';

create or replace function requires_following(parameters jsonb)
    returns boolean
    language sql immutable parallel safe
    return coalesce(cast(parameters ->> 'require_following' as boolean), false);
comment on function requires_following is
    'Whether the release of a run with these parameters does without calls whose text does not continue with '
    'the result.';

create or replace function release_refusal(result text, requires_following boolean, text_id uuid,
    position_char integer)
    returns text
    language plpgsql stable parallel safe
as $$
declare
    follows text;
begin
    -- The text is read only where it can matter: for a result that is a number, or where each result has to
    -- follow.
    if not requires_following and result !~ '^\s*[-−]?[0-9]' then
        return null;
    end if;
    select result_follows(result, substr(held.text, position_char + 1, 120)) into follows from documents held
        where held.document_id = text_id;
    return case
        when follows = 'other_sign' then 'result_has_other_sign'
        when requires_following and follows <> 'equal' then 'result_does_not_follow'
    end;
end
$$;
comment on function release_refusal is
    'Why a release leaves out a kept call with this result at this place of a text. result_has_other_sign: the text continues with the'
    ' number of the other sign. result_does_not_follow: the run requires that results follow (requires_following), and this one does not.'
    ' Null for a call that neither excludes.';

create or replace function undecided_at(run text, tool_name text, threshold double precision)
    returns table (calls bigint, positions bigint)
    -- in plpgsql a body may name a view that is made later
    language plpgsql stable rows 1 set plan_cache_mode = force_custom_plan
as $$
declare
    chosen record;
begin
    select t.sampling_recipe_id, t.scoring_recipe_id into chosen from run_tools t where t.run_id = run
        and t.tool = tool_name;
    return query
        select (select count(*)
                from call_losses loss
                join run_tool_documents member
                    on member.run_id = run and member.tool = tool_name
                        and member.variant_id = loss.document_id
                where loss.scoring_recipe_id = chosen.scoring_recipe_id
                  and loss.reason = 'pruned_below' and loss.gain_bound >= threshold),
               (select count(*)
                from pruned_positions pruned
                join run_tool_documents member
                    on member.run_id = run and member.tool = tool_name
                        and member.variant_id = pruned.document_id
                where pruned.sampling_recipe_id = chosen.sampling_recipe_id
                    and pruned.gain_bound >= threshold);
end
$$;
comment on function undecided_at is
    'What a keep threshold below prune_below may keep beyond the calls that are known, by the stored '
    'bounds: calls whose losses were not all computed, and positions at which no call was sampled. (0, 0) '
    'from prune_below on.';

create or replace function kept_calls_at(run text, tool_name text, threshold double precision)
    returns table (
        document_id text, call_id text, text_before text, call_text text, result text, text_after text,
        gain double precision, releasable boolean)
    -- only the partitions of its recipes are read
    language plpgsql stable set plan_cache_mode = force_custom_plan
as $$
declare
    chosen record;
    undecided record;
begin
    select t.prune_below, t.placebo_recipe_id into chosen
    from run_tools t
    where t.run_id = run and t.tool = tool_name;
    if chosen is null then
        raise exception 'run %: expected a started run with %, found none', run, tool_name
            using hint = 'The table run_tools lists the tools of each run.';
    end if;
    if threshold is null or not (threshold >= chosen.prune_below) then
        select * into undecided from undecided_at(run, tool_name, threshold);
        raise exception 'run %, %: expected a threshold of at least % nats, found %: calls below were not all computed',
            run, tool_name, chosen.prune_below, threshold
            using detail = format('It may keep %s more calls whose losses were not all computed, and calls at %s positions where none was sampled.',
                                  undecided.calls, undecided.positions),
                  hint = format('Start a run with prune_below at or below %s (0 computes every call).',
                      threshold);
    end if;
    return query
        select s.document_id, s.call_id, s.text_before, s.call_text, s.result, s.text_after, s.gain,
               not s.input_only_after
        from scored_calls_of(run) s
        where s.tool = tool_name and is_kept(null, s.gain, threshold);
end
$$;
comment on function kept_calls_at is
    'The calls of one tool in one run that gain at least this much, as in the view kept_calls. Refuses a '
    'threshold below the run''s prune_below, if the answer would not be exact.';

create or replace function best_kept_calls(run text, tool_name text, how_many integer)
    returns table (
        document_id text, call_id text, text_before text, call_text text, result text, text_after text,
        gain double precision, releasable boolean)
    -- only the partitions of its recipes are read
    language plpgsql stable set plan_cache_mode = force_custom_plan
as $$
declare
    chosen record;
begin
    select t.sampling_recipe_id, t.scoring_recipe_id, t.keep_threshold, t.reads_record, t.placebo_recipe_id,
           t.last_document_id, r.corpus_id, r.corpus_version,
               coalesce(r.ordinal_limit, 2147483647) as below_ordinal
    into chosen
    from run_tools t
    join annotation_runs r on r.run_id = t.run_id
    where t.run_id = run and t.tool = tool_name;
    if chosen is null then
        raise exception 'run %: expected a started run with %, found none', run, tool_name
            using hint = 'The table run_tools lists the tools of each run.';
    end if;
    return query
        with best as (
            select loss.document_id, loss.call_id, loss.result,
                   call_gain(loss.gain_bound, loss.probability_with, placebo.probability) as gain
            from call_losses loss
            left join call_information placebo
                on placebo.placebo_recipe_id = chosen.placebo_recipe_id
                    and placebo.document_id = loss.document_id
               and placebo.call_id = loss.call_id
            where loss.scoring_recipe_id = chosen.scoring_recipe_id
              and loss.reason is null
              and run_keeps(null, loss.gain_bound, chosen.keep_threshold, loss.probability_with,
                  placebo.probability)
              -- A subquery that returns a value is computed row by row; `exists` would become a join with the
              -- whole corpus.
              and (
                  select true
                  from documents document
                  join corpus_documents member
                      on member.corpus_id = chosen.corpus_id
                     and member.document_id = coalesce(document.variant_of, document.document_id)
                  where document.document_id = loss.document_id
                    and is_member(member, chosen.corpus_version)
                    and member.ordinal < chosen.below_ordinal
                    and (chosen.last_document_id is null or member.document_id <= chosen.last_document_id)
                    and loss.document_id
                        = case when chosen.reads_record then coalesce(member.variant_id, member.document_id)
                            else member.document_id end
                  limit 1
              )
            order by gain desc, loss.call_id
            limit how_many
        )
        select cast(coalesce(document.variant_of, document.document_id) as text), cast(best.call_id as text),
               substr(document.text, greatest(call.position_char - 120, 0) + 1,
                   least(call.position_char, 120)),
               call.call_text, best.result, substr(document.text, call.position_char + 1, 120), best.gain,
               not call.input_only_after
        from best
        join candidate_calls call
            on call.sampling_recipe_id = chosen.sampling_recipe_id
           and call.document_id = best.document_id
           and call.call_id = best.call_id
        join documents document on document.document_id = best.document_id
        order by best.gain desc, best.call_id;
end
$$;
comment on function best_kept_calls is
    'So many kept calls of one tool in one run, those that gain most first: the same as the first of the '
    'view kept_calls by gain and call_id.';
