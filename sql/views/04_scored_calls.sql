create function scored_calls_of(run text default '', only_kept boolean default false)
    returns table (
        run_id text, tool text, document_id text, call_id text, text_before text, call_text text,
        result text, text_after text, loss_without_call double precision,
        loss_without_result double precision, loss_with_result double precision,
        loss_reduction double precision, placebo_reduction double precision, information double precision,
        placebos bigint, position_char integer, position_token integer,
        position_probability double precision, paragraph integer, call_input text, effective_input text,
        sample_count integer, input_only_after boolean, result_rank integer,
        loss_without_call_full_context double precision, number_format text, url text, document_date date,
        variant_id text, sampling_recipe_id text, execution_recipe_id text, scoring_recipe_id text,
        result_follows text, document_uuid uuid, variant_uuid uuid, call_uuid uuid,
        keep_threshold double precision, tau_information double precision)
    language sql stable parallel safe
begin atomic
    select rt.run_id, rt.tool, call.*, rt.keep_threshold, rt.tau_information
    from planned_run(run) chosen
    cross join planned_recipes(planned_run(run)) own_recipes
    join run_tools rt on chosen is null or rt.run_id = chosen
    cross join lateral (
        -- Postgres plans a subquery with a `with` separately. The recipes are constants in it, so that only their partitions are read; a
        -- direct join with run_tools would read all of them. The run's thresholds are compared outside of the inner one, by a `case` with
        -- a subquery, which Postgres leaves where it is written: inside it would take few calls to be kept, and read all that are for
        -- each candidate. What is computed from its columns is computed for the calls alone that are asked for.
        with call as (
            with scored as (
                select *
                from call_losses
                where scoring_recipe_id = rt.scoring_recipe_id and reason is null
                  and (own_recipes is null or scoring_recipe_id = any (own_recipes))
            )
            select member.document_id, scored.document_id as variant_id, scored.call_id, candidate.call_text, scored.result,
                   scored.loss_without_call, scored.loss_without_result, scored.loss_with_result, scored.loss_reduction,
                   candidate.position_char, candidate.position_token, candidate.position_probability, candidate.paragraph,
                   candidate.call_input, candidate.effective_input, candidate.sample_count, candidate.input_only_after, scored.result_rank,
                   scored.loss_without_call_full_context, scored.number_format, document.text, document.url, document.document_date
            from scored
            join candidate_calls candidate
                on candidate.sampling_recipe_id = rt.sampling_recipe_id
               and (own_recipes is null or candidate.sampling_recipe_id = any (own_recipes))
               and candidate.document_id = scored.document_id and candidate.call_id = scored.call_id
            join run_tool_documents member
                on member.run_id = rt.run_id and member.tool = rt.tool and member.variant_id = scored.document_id
            -- The variant, if the tool reads url and date. Each row has one: a left join, which Postgres leaves out where no column of it is
            -- asked for.
            left join documents document on document.document_id = scored.document_id
        )
        select cast(call.document_id as text) as document_id, cast(call.call_id as text) as call_id,
               substr(call.text, greatest(call.position_char - 120, 0) + 1, least(call.position_char, 120)) as text_before,
               call.call_text, call.result, substr(call.text, call.position_char + 1, 120) as text_after,
               call.loss_without_call, call.loss_without_result, call.loss_with_result, call.loss_reduction,
               -- Three subqueries: one that a query does not ask for is not computed.
               (select avg(placebo.reduction)
                from placebo_losses placebo
                where placebo.placebo_recipe_id = rt.placebo_recipe_id and (own_recipes is null or placebo.placebo_recipe_id = any (own_recipes))
                  and placebo.document_id = call.variant_id and placebo.call_id = call.call_id and placebo.information is not null) as placebo_reduction,
               (select avg(placebo.information)
                from placebo_losses placebo
                where placebo.placebo_recipe_id = rt.placebo_recipe_id and (own_recipes is null or placebo.placebo_recipe_id = any (own_recipes))
                  and placebo.document_id = call.variant_id and placebo.call_id = call.call_id) as information,
               (select count(placebo.information)
                from placebo_losses placebo
                where placebo.placebo_recipe_id = rt.placebo_recipe_id and (own_recipes is null or placebo.placebo_recipe_id = any (own_recipes))
                  and placebo.document_id = call.variant_id and placebo.call_id = call.call_id) as placebos,
               call.position_char, call.position_token, call.position_probability, call.paragraph, call.call_input, call.effective_input,
               call.sample_count, call.input_only_after, call.result_rank, call.loss_without_call_full_context, call.number_format,
               call.url, call.document_date, cast(call.variant_id as text) as variant_id,
               rt.sampling_recipe_id, rt.execution_recipe_id, rt.scoring_recipe_id,
               result_follows(call.result, substr(call.text, call.position_char + 1, 120)) as result_follows,
               call.document_id as document_uuid, call.variant_id as variant_uuid, call.call_id as call_uuid
        from call
        where not only_kept
           or case
                  when is_kept(null, call.loss_reduction, rt.keep_threshold) is not true then false  -- no scored call has a reason against it
                  when rt.tau_information is null then true
                  else (
                      select avg(placebo.information)
                      from placebo_losses placebo
                      where placebo.placebo_recipe_id = rt.placebo_recipe_id and (own_recipes is null or placebo.placebo_recipe_id = any (own_recipes))
                        and placebo.document_id = call.variant_id and placebo.call_id = call.call_id
                  ) >= rt.tau_information
              end
    ) call
    where run is null or is_planned_for(run, chosen, own_recipes);
end;
comment on function scored_calls_of is 'The view scored_calls about one run; an empty name is the newest run that ended well. A name that is a constant is looked up while Postgres plans, and no partition of another run is locked.';

create view scored_calls as
select * from scored_calls_of(null);
comment on view scored_calls is 'Every scored call of every run, kept or not, with the text around it and its losses. How many a threshold would keep is what_would_another_threshold_keep(run, nats): a run with a bound of information keeps fewer than save that much. Below the run''s prune_below calls are missing: they are in call_losses, with their bound and the reason pruned_below.';
comment on column scored_calls.text_before is 'At most 120 characters of the text before the call.';
comment on column scored_calls.result is 'What the tool answered.';
comment on column scored_calls.text_after is 'At most 120 characters of the text after the call.';
comment on column scored_calls.result_follows is 'Whether the text goes on with the result within five words: equal, nearly (but for its sign, or rounded), no; null for a result that cannot stand in a text (the function result_follows).';
comment on column scored_calls.placebo_reduction is 'The mean placebo reduction, nats: what results of other calls save in its place (docs/placebo.md). Null without placebos.';
comment on column scored_calls.information is 'The mean over its placebos of L(e(c, r'')) - L(e(c, r)), nats: what this result saves beyond any other of its kind. Null without placebos.';
comment on column scored_calls.placebos is 'Number of placebos that the two means are of.';
comment on column scored_calls.variant_id is 'The document whose rows these are: of a corrected record, for a tool that reads url and date, another than document_id, the text. call_losses and candidate_calls have it as document_id, so a join with them is by this (variant_uuid).';
comment on column scored_calls.document_uuid is 'The document as tables have it: for questions about one document, which are answered by an index, and for joins. Some clients read bytes.';
comment on column scored_calls.variant_uuid is 'The variant as tables have it: with call_uuid the key of call_losses and candidate_calls.';
comment on column scored_calls.call_uuid is 'The call as tables have it.';
comment on column scored_calls.paragraph is 'The paragraph''s number in the document, from 0.';
comment on column scored_calls.url is 'The address of the record: for a tool that reads the record, at the run''s version of the corpus; for others that of the first record with this text.';
comment on column scored_calls.document_date is 'The date of the record, likewise.';
call inherit_comments('scored_calls', 'run_tools', 'call_losses', 'candidate_calls');
