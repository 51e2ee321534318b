-- The numbers of a tool of a run. All are sums over documents: those of a base, an earlier run whose numbers
-- are stored, and what the documents that joined or left since add and subtract. Without a base (null) all
-- documents of the run have joined. `forgotten` are texts that are being forgotten: then the numbers are what
-- these alone subtract (forgotten_numbers). Postgres plans functions in SQL where they are called, and those
-- in plpgsql with the values of each call: only the partitions of the tool's recipes are read, by indexes for
-- the few documents beyond a base, whole for all documents.

create or replace function counted_documents(rt run_tools, run annotation_runs, base annotation_runs,
    forgotten uuid[] default null)
    returns table (document_id uuid, sign integer)
    language sql stable parallel safe
as $$
    select member.variant_id, 1
    from members_beyond(run.corpus_id, run.corpus_version, coalesce(run.ordinal_limit, 2147483647), 0, 0,
        rt.reads_record, rt.last_document_id) member
    where base.run_id is null and forgotten is null
    union all
    select case when rt.reads_record then member.variant_id else member.document_id end, case
        when member.has_joined then 1 else -1 end
    from differing_members(
        run.corpus_id, run.corpus_version, coalesce(run.ordinal_limit, 2147483647),
        base.corpus_version, coalesce(base.ordinal_limit, 2147483647)) member
    where base.run_id is not null and forgotten is null
    union all
    select case when rt.reads_record then coalesce(member.variant_id, member.document_id)
        else member.document_id end, -1
    from corpus_documents member
    where forgotten is not null and member.document_id = any (forgotten) and member.corpus_id = run.corpus_id
      and is_member(member, run.corpus_version) and member.ordinal < coalesce(run.ordinal_limit, 2147483647)
      and (rt.last_document_id is null or member.document_id <= rt.last_document_id)
$$;
comment on function counted_documents is
    'The documents by which a run differs from its base, as a tool reads them: sign is 1 for those that '
    'joined, -1 for those that left. Or those of the run among texts that are being forgotten, with -1.';

create or replace function earlier_thresholds(base annotation_runs, tool_name text)
    returns table (threshold double precision, calls bigint, texts bigint, releasable_calls bigint)
    language sql stable parallel safe
as $$
    select stored.threshold, stored.calls, stored.texts, stored.releasable_calls
    from finished_run_thresholds stored
    where stored.run_id = base.run_id and stored.tool = tool_name
    union all
    select gone.*
    from forgotten_numbers held
    cross join lateral jsonb_to_recordset(held.numbers -> 'thresholds')
        gone (threshold double precision, calls bigint, texts bigint, releasable_calls bigint)
    where held.run_id = base.run_id and held.tool = tool_name and held.kind = 'finished_run'
$$;
comment on function earlier_thresholds is
    'The rows of finished_run_thresholds that a later run follows from, and what texts subtract that were '
    'forgotten since.';

create or replace function earlier_gains(base annotation_runs, tool_name text)
    returns table (bucket integer, calls bigint, texts bigint, releasable_calls bigint, placebos bigint)
    language sql stable parallel safe
as $$
    select stored.bucket, stored.calls, stored.texts, stored.releasable_calls, stored.placebos
    from finished_run_gains stored
    where stored.run_id = base.run_id and stored.tool = tool_name
    union all
    select gone.*
    from forgotten_numbers held
    cross join lateral jsonb_to_recordset(held.numbers -> 'reductions')
        gone (bucket integer, calls bigint, texts bigint, releasable_calls bigint, placebos bigint)
    where held.run_id = base.run_id and held.tool = tool_name and held.kind = 'finished_run'
$$;
comment on function earlier_gains is 'As earlier_thresholds, of finished_run_gains.';

create or replace function earlier_progress(base annotation_runs, tool_name text)
    returns table (stage text, done bigint, total bigint)
    language sql stable parallel safe
as $$
    select stage, cast(sum(done) as bigint), cast(sum(total) as bigint)
    from (
        select stored.stage, stored.done, stored.total
        from finished_run_progress stored
        where stored.run_id = base.run_id and stored.tool = tool_name
        union all
        select gone.*
        from forgotten_numbers held
        cross join lateral jsonb_to_recordset(held.numbers -> 'progress') gone (stage text, done bigint,
            total bigint)
        where held.run_id = base.run_id and held.tool = tool_name and held.kind = 'finished_run'
    ) summed
    group by stage
$$;
comment on function earlier_progress is 'As earlier_thresholds, of finished_run_progress: a row a stage.';

create or replace function earlier_yield(base annotation_runs, tool_name text)
    returns table (step integer, stage text, reason text, is_loss boolean, count bigint, documents bigint)
    language sql stable parallel safe
as $$
    select stored.step, stored.stage, stored.reason, stored.is_loss, stored.count, stored.documents
    from finished_run_yield stored
    where stored.run_id = base.run_id and stored.tool = tool_name
    union all
    select gone.*
    from forgotten_numbers held
    cross join lateral jsonb_to_recordset(held.numbers -> 'yield')
        gone (step integer, stage text, reason text, is_loss boolean, count bigint, documents bigint)
    where held.run_id = base.run_id and held.tool = tool_name and held.kind = 'finished_run'
$$;
comment on function earlier_yield is 'As earlier_thresholds, of finished_run_yield.';

create or replace function counted_gains(
    rt run_tools, run annotation_runs, base annotation_runs, at_least double precision, of_placebos boolean,
        forgotten uuid[] default null)
    returns table (document_id uuid, sign integer, gain double precision, input_only_after boolean,
        is_placebo boolean)
    language sql stable parallel safe
as $$
    with counted as materialized (
        select * from counted_documents(rt, run, base, forgotten)
    )
    select counted.document_id, counted.sign,
        call_gain(loss.gain_bound, loss.probability_with, placebo.probability),
           call.input_only_after, false
    from counted
    join call_losses loss on loss.scoring_recipe_id = rt.scoring_recipe_id
        and loss.document_id = counted.document_id
    join candidate_calls call
        on call.sampling_recipe_id = rt.sampling_recipe_id and call.document_id = loss.document_id
            and call.call_id = loss.call_id
    left join call_information placebo
        on placebo.placebo_recipe_id = rt.placebo_recipe_id and placebo.document_id = loss.document_id
            and placebo.call_id = loss.call_id
    where run_keeps(loss.reason, loss.gain_bound, at_least, loss.probability_with, placebo.probability)
    union all
    select counted.document_id, counted.sign, placebo.gain, null, true
    from counted
    join placebo_losses placebo on placebo.placebo_recipe_id = rt.placebo_recipe_id
        and placebo.document_id = counted.document_id
    where of_placebos
      and placebo.is_sampled
      and placebo.gain >= at_least
$$;
comment on function counted_gains is
    'What each call gains that the run''s rule keeps at a threshold of at_least, and (of_placebos) each '
    'sampled placebo that it would keep, of the counted_documents.';

create or replace function counted_by_document(
    rt run_tools, run annotation_runs, base annotation_runs, at_least double precision,
        thresholds double precision[], of_placebos boolean,
    forgotten uuid[] default null)
    returns table (threshold double precision, document_id uuid, sign integer, calls bigint,
        releasable_calls bigint, placebos bigint)
    language sql stable parallel safe
as $$
    select asked.threshold, found.document_id, found.sign, count(*) filter (where not found.is_placebo),
           count(*) filter (where not found.input_only_after), count(*) filter (where found.is_placebo)
    from counted_gains(rt, run, base, at_least, of_placebos, forgotten) found
    join unnest(thresholds) asked (threshold) on found.gain >= asked.threshold
    group by asked.threshold, found.document_id, found.sign
$$;
comment on function counted_by_document is
    'Of each of the counted_documents with any: the calls that the run''s rule keeps at each threshold, '
    'those of them that may be released, and the sampled placebos that it would keep. at_least is the '
    'lowest of the thresholds.';

create or replace function thresholds_of(rt run_tools)
    returns double precision[]
    language sql immutable parallel safe
    -- Below prune_below not all calls were computed.
    return array(
        select threshold
        from unnest(case rt.keep_rule when 'paper' then array[0.5, 1.0, 2.0]
            else array[0.1, 0.5] end::double precision[]) usual (threshold)
        where threshold >= rt.prune_below
        union
        select rt.keep_threshold
        order by threshold);
comment on function thresholds_of is
    'The thresholds that a tool of a run is counted at, from below: by the keep rule paper those of the '
    'paper''s Table 2, by probability 0.1 and 0.5; and its own.';

create or replace function counted_thresholds(rt run_tools, run annotation_runs, base annotation_runs,
    forgotten uuid[] default null)
    returns table (threshold double precision, calls bigint, texts bigint, releasable_calls bigint)
    language plpgsql stable parallel safe set plan_cache_mode = force_custom_plan
as $$
#variable_conflict use_column
begin
    return query
        select threshold, cast(sum(calls) as bigint), cast(sum(texts) as bigint),
            cast(sum(releasable_calls) as bigint)
        from (
            select unnest(thresholds_of(rt)) as threshold, 0 as calls, 0 as texts, 0 as releasable_calls
            union all
            select threshold, calls, texts, releasable_calls from earlier_thresholds(base, rt.tool)
            union all
            select threshold, sign * calls, sign, sign * releasable_calls
            from counted_by_document(rt, run, base, (thresholds_of(rt))[1], thresholds_of(rt), false,
                forgotten)
        ) found
        group by threshold;
end
$$;
comment on function counted_thresholds is 'The rows of the view threshold_counts of a tool of a run.';

create or replace function counted_histogram(rt run_tools, run annotation_runs, base annotation_runs,
    forgotten uuid[] default null)
    returns table (bucket integer, calls bigint, texts bigint, releasable_calls bigint, placebos bigint)
    language plpgsql stable parallel safe set plan_cache_mode = force_custom_plan
as $$
#variable_conflict use_column
begin
    return query
        with reached as materialized (
            select * from counted_gains(rt, run, base, rt.prune_below, true, forgotten)
        )
        select bucket, cast(sum(calls) as bigint), cast(sum(texts) as bigint),
            cast(sum(releasable_calls) as bigint), cast(sum(placebos) as bigint)
        from (
            select bucket, calls, texts, releasable_calls, placebos from earlier_gains(base, rt.tool)
            union all
            select gain_bucket(gain, buckets_a_unit(rt.keep_rule)),
                sum(case when is_placebo then 0 else sign end), 0,
                   sum(case when input_only_after is false then sign else 0 end),
                       sum(case when is_placebo then sign else 0 end)
            from reached
            group by 1
            union all
            select gain_bucket(best.gain, buckets_a_unit(rt.keep_rule)), 0, best.sign, 0, 0
            from (select max(gain) as gain, sign from reached where not is_placebo
                group by document_id, sign) best
        ) found
        group by bucket
        having forgotten is not null or sum(calls) > 0 or sum(placebos) > 0;
end
$$;
comment on function counted_histogram is 'The rows of the view gain_histogram of a tool of a run.';

create or replace function counted_progress(rt run_tools, run annotation_runs, base annotation_runs,
    forgotten uuid[] default null)
    returns table (step integer, stage text, done bigint, total bigint, tokens_done bigint, tokens bigint)
    language plpgsql stable parallel safe set plan_cache_mode = force_custom_plan
as $$
#variable_conflict use_column
begin
    return query
        with document as (
            -- null: no kept paragraph
            select counted.document_id, counted.sign,
                cast(about_tokens(sum(kept.end_char - kept.start_char)) as integer) as tokens
            from counted_documents(rt, run, base, forgotten) counted
            left join filter_decisions kept
                on kept.filter_recipe_id = rt.filter_recipe_id and kept.document_id = counted.document_id
                    and kept.kept
            group by counted.document_id, counted.sign
        ),
        every as (
            select sum(sign) as documents, sum(sign) filter (where tokens is not null) as to_annotate,
                sum(sign * tokens) as tokens from document
        ),
        finished as (
            select ledger.stage, sum(document.sign) as documents,
                sum(document.sign * document.tokens) as tokens
            from document
            join stage_ledger ledger
                on ledger.document_id = document.document_id
               and ledger.recipe_id in (rt.filter_recipe_id, rt.sampling_recipe_id, rt.execution_recipe_id,
                   rt.scoring_recipe_id, rt.placebo_recipe_id)
            where ledger.stage = 'filter' or document.tokens is not null
            group by ledger.stage
        )
        select stages.step, stages.stage, coalesce(finished.documents, 0) + coalesce(stored.done, 0),
               coalesce(case when stages.step = 1 then every.documents
                   else every.to_annotate end, 0) + coalesce(stored.total, 0),
               case when stages.step > 1 then cast(coalesce(finished.tokens, 0) as bigint) end,
               case when stages.step > 1 then cast(coalesce(every.tokens, 0) as bigint) end
        from (values (1, 'filter'), (2, 'sample'), (3, 'execute'), (4, 'score'), (5, 'placebo')) stages (step,
            stage)
        cross join every
        left join finished on finished.stage = stages.stage
        left join earlier_progress(base, rt.tool) stored on stored.stage = stages.stage
        where stages.stage <> 'placebo' or has_placebos(run.parameters, rt.placebo_recipe_id);
end
$$;
comment on function counted_progress is
    'The rows of the view annotation_progress of a tool of a run; the tokens are those of the '
    'counted_documents.';

create or replace function counted_outcomes(rt run_tools, run annotation_runs, base annotation_runs,
    forgotten uuid[] default null)
    returns table (outcome text, calls bigint, texts bigint, releasable bigint)
    language sql stable parallel safe
as $$
    select outcome, cast(sum(sign * calls) as bigint), sum(sign), cast(sum(sign * releasable) as bigint)
    from (
        select judged.outcome, judged.document_id, judged.sign, count(*) as calls,
            count(*) filter (where not call.input_only_after) as releasable
        from (
            select counted.document_id, counted.sign, loss.call_id, call_outcome(
                       true, loss.reason, loss.gain_bound, rt.keep_threshold, loss.probability_with,
                           placebo.probability) as outcome
            from counted_documents(rt, run, base, forgotten) counted
            join call_losses loss on loss.scoring_recipe_id = rt.scoring_recipe_id
                and loss.document_id = counted.document_id
            left join call_information placebo
                on placebo.placebo_recipe_id = rt.placebo_recipe_id and placebo.document_id = loss.document_id
                    and placebo.call_id = loss.call_id
            where loss.reason is null or loss.reason = 'pruned_below'
        ) judged
        left join candidate_calls call
            on judged.outcome = 'kept'
           and call.sampling_recipe_id = rt.sampling_recipe_id and call.document_id = judged.document_id
               and call.call_id = judged.call_id
        group by judged.outcome, judged.document_id, judged.sign
    ) found
    group by outcome
$$;
comment on function counted_outcomes is
    'The calls of the counted_documents that were scored, or are provably below prune_below, by '
    'call_outcome; with their texts, and of the kept ones those that may be released.';

create or replace function counted_yield(rt run_tools, run annotation_runs, base annotation_runs,
    forgotten uuid[] default null)
    returns table (step integer, stage text, reason text, is_loss boolean, count bigint, documents bigint)
    language plpgsql stable parallel safe set plan_cache_mode = force_custom_plan
as $$
#variable_conflict use_column
begin
    return query
        with counted as materialized (
            select * from counted_documents(rt, run, base, forgotten)
        ),
        earlier as materialized (
            select * from earlier_yield(base, rt.tool)
        ),
        -- No row before the run has a release. A text that is forgotten stays among what was released.
        released as (
            select 'released' as reason, false as is_loss, (
                       select count(*) from release_calls call where call.release_id = made.release_id
                           and call.tool = rt.tool) as count
            from run_releases made
            where made.run_id = rt.run_id and forgotten is null
            union all
            select left_out.reason, true, cast(left_out.count as bigint)
            from run_releases made
            cross join lateral jsonb_each_text(made.left_out -> rt.tool) left_out (reason, count)
            where made.run_id = rt.run_id and forgotten is null
        )
        select step, stage, reason, is_loss, cast(sum(count) as bigint), cast(sum(documents) as bigint)
        from (
            select 1 as step, 'filter' as stage, shown.reason, false as is_loss, 0 as count,
                null::bigint as documents
            from (values ('texts'), ('paragraphs'), ('kept_paragraphs')) shown (reason)
            union all
            select 1, 'filter', 'texts', false, sum(sign), null from counted
            union all
            select 1, 'filter', shown.reason, shown.is_loss, decisions.paragraphs, null
            from (
                select decision.kept, decision.reason, sum(counted.sign) as paragraphs
                from counted
                join filter_decisions decision
                    on decision.filter_recipe_id = rt.filter_recipe_id
                        and decision.document_id = counted.document_id
                group by decision.kept, decision.reason
            ) decisions
            cross join lateral (
                values ('paragraphs', false), (case when kept then 'kept_paragraphs'
                    else reason end, not kept)
            ) shown (reason, is_loss)
            union all
            select case done.stage when 'sample' then 2 when 'execute' then 3 when 'score' then 4 else 5 end,
                done.stage, found.name,
                   counts_a_loss(found.name), sum(done.documents * cast(found.count as bigint)),
                   case when found.name <> 'texts_without_position' then sum(done.documents) end
            from (
                -- Many documents have the same counts.
                select ledger.stage, ledger.counts, sum(counted.sign) as documents
                from counted
                join stage_ledger ledger
                    on ledger.document_id = counted.document_id
                   and ledger.recipe_id in (rt.sampling_recipe_id, rt.execution_recipe_id,
                       rt.scoring_recipe_id, rt.placebo_recipe_id)
                group by ledger.stage, ledger.counts
            ) done
            cross join lateral jsonb_each_text(
                case
                    when done.stage = 'sample'
                         and coalesce(cast(done.counts ->> 'positions' as bigint), 0) = 0
                         and coalesce(cast(done.counts ->> 'positions_pruned_below' as bigint), 0) = 0
                         and not done.counts ?| array['process_killed', 'out_of_memory']
                    then done.counts || '{"texts_without_position": 1}'
                    else done.counts
                end) found (name, count)
            group by done.stage, found.name
            union all
            select shown.step, shown.stage, shown.reason, shown.is_loss, shown.count, null
            from (
                select coalesce(sum(calls) filter (where outcome = 'kept'), 0) as kept,
                       coalesce(sum(texts) filter (where outcome = 'kept'), 0) as texts,
                       coalesce(sum(calls) filter (where outcome = 'below_threshold'), 0) as below_threshold,
                       coalesce(sum(calls) filter (where outcome = 'like_a_placebo'), 0) as like_a_placebo,
                       coalesce(sum(releasable) filter (where outcome = 'kept'), 0) as releasable
                from counted_outcomes(rt, run, base, forgotten)
            ) sums
            cross join lateral (
                values (6, 'keep', 'kept', false, sums.kept),
                       (6, 'keep', 'kept_texts', false, sums.texts),
                       (6, 'keep', 'below_threshold', true, sums.below_threshold),
                       (6, 'keep', 'like_a_placebo', true, sums.like_a_placebo),
                       (7, 'release', 'input_only_after', true, sums.kept - sums.releasable),
                       (7, 'release', 'not_in_release', true, sums.releasable)
            ) shown (step, stage, reason, is_loss, count)
            where (shown.reason <> 'like_a_placebo' or rt.keep_rule = 'probability')
              and (shown.reason <> 'not_in_release' or exists (select from released))
            union all
            select step, stage, reason, is_loss, count, documents
            from earlier
            where step < 7 or reason = 'input_only_after'
            union all
            select 7, 'release', 'not_in_release', true, case reason when 'kept' then count else -count end,
                null
            from earlier
            where reason in ('kept', 'input_only_after') and exists (select from released)
            union all
            select 7, 'release', shown.reason, shown.is_loss, shown.count, null
            from released
            cross join lateral (values (released.reason, released.is_loss, released.count),
                ('not_in_release', true, -released.count))
                shown (reason, is_loss, count)
        ) found
        group by step, stage, reason, is_loss
        -- A reason that no document has any more has no row.
        having forgotten is not null or sum(documents) > 0 or sum(documents) is null
            and (sum(count) > 0 or not is_loss or step >= 6);
end
$$;
comment on function counted_yield is 'The rows of the view yield_by_stage of a tool of a run.';
