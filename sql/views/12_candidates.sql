create function candidates_of(run text default '')
    returns table (
        run_id text, tool text, document_id text, call_id text, text_before text, call_text text,
        result text, text_after text, outcome text, reason text, release_outcome text,
        loss_without_call double precision, loss_without_result double precision,
        loss_with_result double precision, loss_reduction double precision,
        reduction_bound double precision, placebo_reduction double precision, information double precision,
        placebos bigint, keep_threshold double precision, tau_information double precision,
        position_char integer, position_token integer, position_probability double precision,
        paragraph integer, call_input text, effective_input text, input_key text, sample_count integer,
        input_only_after boolean, result_rank integer, loss_without_call_full_context double precision,
        number_format text, url text, document_date date, variant_id text, ordinal integer,
        sampling_recipe_id text, execution_recipe_id text, scoring_recipe_id text, result_follows text,
        document_uuid uuid, variant_uuid uuid, call_uuid uuid)
    language sql stable parallel safe
begin atomic
    select rt.run_id, rt.tool, cast(call.document_id as text) as document_id, cast(call.call_id as text) as call_id, call.text_before, call.call_text, call.result, call.text_after,
           judged.outcome,
           case judged.outcome
               when 'sampled' then (
                   select failed.reason
                   from failed_documents failed
                   where failed.document_id = call.variant_id and failed.recipe_id in (rt.execution_recipe_id, rt.scoring_recipe_id)
                   limit 1
               )
               else call.not_scored_for
           end as reason,
           case
               when judged.outcome <> 'kept' then null
               when exists (
                   select from release_calls held
                   where held.release_id = made.release_id and held.call_id = call.call_id
                     -- Of one run: its release is a constant, so that the calls of no other are read.
                     and (chosen is null or held.release_id = (select own.release_id from run_releases own where own.run_id = chosen))
               ) then 'released'
               when call.input_only_after then 'input_only_after'
               when requires_following(started.parameters) and lacks_result(call.result, (
                   -- Not call.text_after, for which all texts would be read.
                   select substr(held.text, call.position_char + 1, 120) from documents held where held.document_id = call.variant_id
               )) then 'result_does_not_follow'
               when not rt.tool = any (coalesce(released.lacking_tools, '{}')) and exists (
                   select from better_kept_calls(
                       rt.run_id, released.lacking_tools, call.document_id, call.record_variant_id, call.position_char,
                       call.loss_reduction, call.call_id, own_recipes)
               ) then 'better_call_at_position'
               when exists (
                   select from run_overlaps shared
                   where shared.run_id = rt.run_id and shared.document_id = call.document_id and shared.is_left_out
               ) then 'holds_evaluation_data'
               when made.release_id is null then 'no_release'
               when rt.tool = any (released.lacking_tools) or started.parameters ->> 'max_examples_per_tool' is null then 'not_in_release'
               else 'above_max_examples'
           end as release_outcome,
           call.loss_without_call, call.loss_without_result, call.loss_with_result, call.loss_reduction, call.reduction_bound,
           call.placebo_reduction, call.information, call.placebos, rt.keep_threshold, rt.tau_information, call.position_char, call.position_token, call.position_probability, call.paragraph, call.call_input,
           call.effective_input, cast(call.input_key as text) as input_key, call.sample_count, call.input_only_after, call.result_rank,
           call.loss_without_call_full_context, call.number_format, call.url, call.document_date, cast(call.variant_id as text) as variant_id, call.ordinal,
           rt.sampling_recipe_id, rt.execution_recipe_id, rt.scoring_recipe_id, result_follows(call.result, call.text_after) as result_follows,
           call.document_id as document_uuid, call.variant_id as variant_uuid, call.call_id as call_uuid
    from planned_run(run) chosen
    cross join planned_recipes(planned_run(run)) own_recipes
    join run_tools rt on chosen is null or rt.run_id = chosen
    join annotation_runs started on started.run_id = rt.run_id
    left join run_releases made on made.run_id = rt.run_id
    left join dataset_releases released on released.release_id = made.release_id
    cross join lateral (
        -- Postgres plans a subquery with a `with` separately. The recipes are constants in it, so that only their partitions are read; a
        -- direct join with run_tools would read all of them.
        with sampled as (
            select *
            from candidate_calls
            where sampling_recipe_id = rt.sampling_recipe_id and (own_recipes is null or sampling_recipe_id = any (own_recipes))
        )
        select member.document_id, member.ordinal, sampled.document_id as variant_id, member.variant_id as record_variant_id, sampled.call_id,
               substr(document.text, greatest(sampled.position_char - 120, 0) + 1, least(sampled.position_char, 120)) as text_before,
               substr(document.text, sampled.position_char + 1, 120) as text_after,
               sampled.call_text, sampled.position_char, sampled.position_token, sampled.position_probability, sampled.paragraph,
               sampled.call_input, sampled.effective_input, sampled.input_key, sampled.sample_count, sampled.input_only_after,
               loss.call_id as scored_call_id, loss.reason as not_scored_for, loss.result, loss.result_rank, loss.loss_without_call,
               loss.loss_without_result, loss.loss_with_result, loss.loss_without_call_full_context, loss.loss_reduction,
               loss.reduction_bound, loss.number_format, document.url, document.document_date,
               -- Three subqueries: one that a query does not ask for is not computed.
               (select avg(placebo.reduction)
                from placebo_losses placebo
                where placebo.placebo_recipe_id = rt.placebo_recipe_id and (own_recipes is null or placebo.placebo_recipe_id = any (own_recipes))
                  and placebo.document_id = sampled.document_id and placebo.call_id = sampled.call_id and placebo.information is not null) as placebo_reduction,
               (select avg(placebo.information)
                from placebo_losses placebo
                where placebo.placebo_recipe_id = rt.placebo_recipe_id and (own_recipes is null or placebo.placebo_recipe_id = any (own_recipes))
                  and placebo.document_id = sampled.document_id and placebo.call_id = sampled.call_id) as information,
               (select count(placebo.information)
                from placebo_losses placebo
                where placebo.placebo_recipe_id = rt.placebo_recipe_id and (own_recipes is null or placebo.placebo_recipe_id = any (own_recipes))
                  and placebo.document_id = sampled.document_id and placebo.call_id = sampled.call_id) as placebos
        from sampled
        join run_documents member
            on member.run_id = rt.run_id
           and case when rt.reads_record then member.variant_id else member.document_id end = sampled.document_id
        -- The variant, if the tool reads url and date. Each row has one: a left join, which Postgres leaves out where no column of it is asked for.
        left join documents document on document.document_id = sampled.document_id
        left join call_losses loss
            on loss.scoring_recipe_id = rt.scoring_recipe_id and (own_recipes is null or loss.scoring_recipe_id = any (own_recipes))
           and loss.document_id = sampled.document_id and loss.call_id = sampled.call_id
    ) call
    cross join lateral (
        -- A `with` here, too: otherwise the outcome would be found anew wherever it is named.
        with found as (
            select call_outcome(
                call.scored_call_id is not null, call.not_scored_for, call.loss_reduction, rt.keep_threshold,
                rt.tau_information is null or coalesce((
                    -- Not call.information, which would be computed for each call, also if no bound is asked for.
                    select avg(placebo.information)
                    from placebo_losses placebo
                    where placebo.placebo_recipe_id = rt.placebo_recipe_id and (own_recipes is null or placebo.placebo_recipe_id = any (own_recipes))
                      and placebo.document_id = call.variant_id and placebo.call_id = call.call_id
                ) >= rt.tau_information, false)) as outcome
        )
        select outcome from found
    ) judged
    where run is null or is_planned_for(run, chosen, own_recipes);
end;
comment on function candidates_of is 'The view candidates about one run, as scored_calls_of.';

-- The reasons are those of candidates_of, in the same order. There each kept call asks whether a better one is at its place, which is fast for
-- the calls of a page or of a text; here the kept calls are put in order once, which is fast for all calls of a run.
create function outcomes_of(run text default '')
    returns table (
        tool text, outcome text, reason text, release_outcome text, document_uuid uuid, variant_uuid uuid, call_uuid uuid)
    language sql stable parallel safe
begin atomic
    with candidate as (
        select run_id, tool, outcome, reason, document_uuid, variant_uuid, call_uuid, position_char, input_only_after, result, loss_reduction
        from candidates_of(run)
    ),
    release_rule as materialized (
        select started.run_id, requires_following(started.parameters) as requires_following,
               started.parameters ->> 'max_examples_per_tool' is not null as has_most_examples,
               made.release_id, coalesce(released.lacking_tools, '{}') as lacking_tools
        from annotation_runs started
        left join run_releases made on made.run_id = started.run_id
        left join dataset_releases released on released.release_id = made.release_id
        where run is null or started.run_id = planned_run(run)
    ),
    kept as (
        select call.*, rule.release_id, rule.has_most_examples, call.tool = any (rule.lacking_tools) as is_lacking,
               rule.requires_following and lacks_result(call.result, (
                   select substr(held.text, call.position_char + 1, 120) from documents held where held.document_id = call.variant_uuid
               )) as lacks_result
        from candidate call
        join release_rule rule on rule.run_id = call.run_id
        where call.outcome = 'kept'
    ),
    placed as (
        select kept.*,
               row_number() over (
                   partition by document_uuid, position_char, run_id, input_only_after or lacks_result or is_lacking
                   order by loss_reduction desc, call_uuid) as place
        from kept
    )
    select tool, outcome, reason, null as release_outcome, document_uuid, variant_uuid, call_uuid
    from candidate
    where outcome <> 'kept'
    union all
    select placed.tool, placed.outcome, placed.reason,
           case
               when released.call_id is not null then 'released'
               when placed.input_only_after then 'input_only_after'
               when placed.lacks_result then 'result_does_not_follow'
               when not placed.is_lacking and placed.place > 1 then 'better_call_at_position'
               when exists (
                   select from run_overlaps shared
                   where shared.run_id = placed.run_id and shared.document_id = placed.document_uuid and shared.is_left_out
               ) then 'holds_evaluation_data'
               when placed.release_id is null then 'no_release'
               when placed.is_lacking or not placed.has_most_examples then 'not_in_release'
               else 'above_max_examples'
           end,
           placed.document_uuid, placed.variant_uuid, placed.call_uuid
    from placed
    left join release_calls released
        -- By its text, too: the index of release and text finds its few calls, where Postgres would read all of the release for each.
        on released.release_id = placed.release_id and released.document_id = placed.document_uuid and released.call_id = placed.call_uuid
       and (run is null or released.release_id = (select own.release_id from run_releases own where own.run_id = planned_run(run)));
end;
comment on function outcomes_of is 'What became of every candidate call of a run: outcome, reason and release_outcome of candidates_of, of all calls at once, which takes half as long.';

create view candidates as
select * from candidates_of(null);
comment on view candidates is 'Every candidate call of every run, with what became of it. Give run_id and tool: only their partitions are read; with document_uuid only the calls of that text.';
comment on column candidates.outcome is 'What happened to the call before the release, in the order of the stages. sampled: not scored, yet or because its text was given up. no_result: the tool gave none, or none that does not repeat the text; or the run does not score the call, since its input stands only after it. not_finite: a loss is not a finite number. pruned: provably cannot reach the run''s prune_below. below_threshold: saves less than keep_threshold. below_tau_information: its result carries less information than the run asks for, or it has no placebo. kept: kept by the run''s keep rule; these are the calls of kept_calls.';
comment on column candidates.reason is 'Why it has no losses that count. sampled: process_killed or out_of_memory if its text was given up. no_result, not_finite, pruned: as in call_losses.reason. Else null.';
comment on column candidates.release_outcome is 'What the run''s release did with a kept call. released: it is in it. input_only_after: it is never released. result_does_not_follow: the text does not go on with its result, and the run asks for that (require_following). better_call_at_position: another kept call of any tool at its place saves more (of equal ones: has the smaller id). holds_evaluation_data: its text shares words with evaluation data, and the release leaves it out. no_release: the run has none, yet. above_max_examples: the tool has max_examples_per_tool texts without it. not_in_release: the release lacks the tool, or was made before the call was scored. Null for a call that is not kept.';
comment on column candidates.result is 'What the tool answered: the result that was taken; null if there is none.';
call inherit_comments('candidates', 'scored_calls', 'run_tool_documents', 'call_losses', 'candidate_calls');
