-- What changed between the releases of two runs.

create or replace function calls_to_compare(run text, with_run text)
    returns table (document_id uuid, call_id uuid, scoring_recipe_id text, tool text)
    -- only the partitions of its recipes are read
    language plpgsql stable set plan_cache_mode = force_custom_plan
as $$
#variable_conflict use_column
declare
    released text := (select release_id from run_releases where run_id = run);
begin
    if released is not null then
        return query select document_id, call_id, scoring_recipe_id, tool from release_calls
            where release_id = released;
    elsif run is not null and with_run is not null
        and not exists (select from run_releases where run_id = with_run) then
        return query
            select distinct on (kept.document_uuid, kept.position_char) kept.document_uuid, kept.call_uuid,
                kept.scoring_recipe_id, kept.tool
            from kept_calls_of(run) kept
            join annotation_runs asking on asking.run_id = kept.run_id
            where kept.releasable
              and release_refusal(kept.result, requires_following(asking.parameters), kept.variant_uuid,
                  kept.position_char) is null
            order by kept.document_uuid, kept.position_char, kept.gain desc, kept.call_uuid;
    end if;
end
$$;
comment on function calls_to_compare is
    'The calls of a run that are compared with those of another run: those of its release. Where neither '
    'has a release, those that a release would take: of the kept ones that may be released the best at each '
    'place. None if only the other one has a release, and of a run without a release that is compared with '
    'none.';

create or replace function release_changes_between(later_run text, earlier_run text)
    returns table (
        is_added boolean, tool text, document_id uuid, call_id uuid, position_char integer, call_text text,
            result text,
        gain double precision, reason text, detail text, probability_with double precision)
    language plpgsql stable set plan_cache_mode = force_custom_plan
as $$
#variable_conflict use_column
declare
    compares_kept boolean := not exists (select from run_releases where run_id in (later_run, earlier_run));
    -- As constants, so that no partition of another recipe is read.
    sampling_recipe_ids text[] := array(select sampling_recipe_id from run_tools
        where run_id in (later_run, earlier_run));
    scoring_recipe_ids text[] := array(select scoring_recipe_id from run_tools
        where run_id in (later_run, earlier_run));
    placebo_recipe_ids text[] := array(select placebo_recipe_id from run_tools
        where run_id in (later_run, earlier_run));
    same_corpus_id text := (
        select run.corpus_id
        from annotation_runs run
        join annotation_runs other using (corpus_id)
        where run.run_id = later_run and other.run_id = earlier_run
    );
    version_before integer := (select min(corpus_version) from annotation_runs
        where run_id in (later_run, earlier_run));
    version_after integer := (select max(corpus_version) from annotation_runs
        where run_id in (later_run, earlier_run));
begin
    return query
        -- A call is the same where text, tool, place, call and result are the same: what it was computed by
        -- may differ.
        with differing as (
            select coalesce(now.document_id, before.document_id) as document_id,
                   coalesce(now.call_id, before.call_id) as call_id,
                   coalesce(now.scoring_recipe_id, before.scoring_recipe_id) as scoring_recipe_id,
                   coalesce(now.tool, before.tool) as tool,
                   now.call_id is not null as is_added
            from calls_to_compare(later_run, earlier_run) now
            full join calls_to_compare(earlier_run, later_run) before
                on before.call_id = now.call_id and before.scoring_recipe_id = now.scoring_recipe_id
            where now.call_id is null or before.call_id is null
        ),
        described as (
            select differing.*,
                   own.run_id as own_run_id,
                   case when differing.is_added then earlier_run else later_run end as other_run_id,
                   own.sampling_recipe_id, call.document_id as variant_id, call.position_char, call.call_text,
                       loss.result,
                   call_gain(loss.gain_bound, loss.probability_with, placebo.probability) as gain,
                       loss.probability_with
            from differing
            join run_tools own
                on own.run_id = case when differing.is_added then later_run else earlier_run end
               and own.tool = differing.tool
            join annotation_runs run on run.run_id = own.run_id
            -- names the variant under which the rows of a tool are that reads the record
            left join corpus_documents member
                on own.reads_record and member.corpus_id = run.corpus_id
                    and member.document_id = differing.document_id
               and is_member(member, run.corpus_version)
            left join candidate_calls call
                on call.sampling_recipe_id = own.sampling_recipe_id
               and call.document_id = coalesce(member.variant_id, differing.document_id)
                   and call.call_id = differing.call_id
               and call.sampling_recipe_id = any (sampling_recipe_ids)  -- reads no other partition
            left join call_losses loss
                on loss.scoring_recipe_id = differing.scoring_recipe_id
                    and loss.document_id = call.document_id
               and loss.call_id = differing.call_id
               and loss.scoring_recipe_id = any (scoring_recipe_ids)
            left join call_information placebo
                on placebo.placebo_recipe_id = own.placebo_recipe_id
                    and placebo.document_id = loss.document_id
               and placebo.call_id = loss.call_id and placebo.placebo_recipe_id = any (placebo_recipe_ids)
        ),
        compared as (
            select *,
                   count(*) over (partition by document_id, tool, position_char, call_text,
                       result) as with_same_result,
                   -- The other release's result of the same call, and its call at the place: a release holds
                   -- at most one there.
                   coalesce(lag(result) over same_call, lead(result) over same_call) as other_result,
                   coalesce(lag(call_text) over same_place, lead(call_text) over same_place) as call_there,
                   coalesce(lag(result) over same_place, lead(result) over same_place) as result_there
            from described
            window same_call as (partition by document_id, tool, position_char, call_text order by is_added),
                   same_place as (partition by document_id, position_char order by is_added)
        ),
        moved as (
            -- Rows of records that began or ended between the two versions.
            select record_id, document_id, member
            from corpus_documents member
            where corpus_id = same_corpus_id and record_id is not null
              and (first_version > version_before and first_version <= version_after
                   or left_version > version_before and left_version <= version_after)
        ),
        differing_recipes as (
            select now.tool, case when stage.step <= 2 then 'sample' else 'score' end as stage,
                array_agg(distinct field.key) as keys
            from run_tools now
            join run_tools before on before.run_id = earlier_run and before.tool = now.tool
            cross join stages_of(now) stage
            join stages_of(before) stage_before using (step)
            left join recipes recipe_now on recipe_now.recipe_id = stage.recipe_id
            left join recipes recipe_before on recipe_before.recipe_id = stage_before.recipe_id
            left join lateral (
                select key
                from jsonb_object_keys(coalesce(recipe_now.definition, '{}')
                    || coalesce(recipe_before.definition, '{}')) key
                where recipe_now.definition -> key is distinct from recipe_before.definition -> key
            ) field on true
            where now.run_id = later_run and step <= 4 and stage.recipe_id <> stage_before.recipe_id
            group by 1, 2
        ),
        recipe_changes as (
            select tool, stage, array_to_string(keys, ', ') as detail,
                   case
                       when keys && '{model,proposer}' then 'model_changed'
                       when keys && '{prompt,prompt_sha256}' then 'prompt_changed'
                       when keys && '{tool_version}' then 'tool_changed'
                       when keys && '{filter_version,sampling_version,record_version,execution_version,scoring_version}' then 'code_changed'
                       else 'choices_changed'
                   end as reason
            from differing_recipes
        ),
        judged as (
            select changed.*,
                   other_tool.keep_threshold as other_threshold, own_tool.keep_threshold as own_threshold,
                   other.parameters ->> 'max_examples_per_tool' as max_examples, successor.record_id,
                   coalesce(sampling.detail, scoring.detail) as recipe_detail,
                       other_loss.result as result_of_other,
                   coalesce(
                       case
                           when other.run_id is null then 'first_run'
                           when member.document_id is null and successor.record_id is not null
                               then 'text_changed'
                           when member.document_id is null then case when changed.is_added then 'text_new'
                               else 'text_removed' end
                           when member.ordinal >= other.ordinal_limit then 'document_limit'
                           when member.document_id > other_tool.last_document_id then 'until_kept'
                           when other_tool.tool is null or changed.tool = any (other_release.lacking_tools)
                               then 'tool_lacking'
                           when other_tool.reads_record and own_tool.reads_record
                               and coalesce(member.variant_id, member.document_id) <> changed.variant_id
                                   then 'record_corrected'
                           when changed.other_result is not null then 'result_changed'
                           when sampling.reason is not null then sampling.reason
                           -- From here on both runs work on the same candidate.
                           -- the other run did not finish the tool
                           when other_loss.call_id is null then 'tool_lacking'
                           when other_loss.result is distinct from changed.result then 'result_changed'
                           when not is_kept(other_loss.reason, other_loss.gain_bound, own_tool.keep_threshold)
                               then scoring.reason
                           else case call_outcome(
                                    other_loss.call_id is not null, other_loss.reason, other_loss.gain_bound,
                                        other_tool.keep_threshold,
                                    other_loss.probability_with, placebo.probability)
                               when 'below_threshold' then 'threshold'
                               when 'like_a_placebo' then 'placebo'
                           end
                       end,
                       -- The other run keeps these, too.
                       case
                           when compares_kept and refusal.reason is not null then refusal.reason
                           when compares_kept and changed.call_there is not null
                               then 'better_call_at_position'
                           when made.release_id is null and not compares_kept then 'no_release'
                           when choice.left_out is not null then choice.left_out
                           when other.parameters ->> 'max_examples_per_tool' is not null
                               then 'above_max_examples'
                           else 'other'
                       end) as reason
            from compared changed
            join annotation_runs own on own.run_id = changed.own_run_id
            join run_tools own_tool on own_tool.run_id = changed.own_run_id and own_tool.tool = changed.tool
            left join annotation_runs other on other.run_id = changed.other_run_id
            left join run_tools other_tool on other_tool.run_id = other.run_id
                and other_tool.tool = changed.tool
            left join run_releases made on made.run_id = other.run_id
            left join dataset_releases other_release on other_release.release_id = made.release_id
            left join recipe_changes sampling on sampling.tool = changed.tool and sampling.stage = 'sample'
            left join recipe_changes scoring on scoring.tool = changed.tool and scoring.stage = 'score'
            left join lateral (
                select document_id, variant_id, ordinal
                from corpus_documents held
                where corpus_id = other.corpus_id and document_id = changed.document_id
                    and is_member(held, other.corpus_version)
            ) member on true
            left join lateral (
                -- The record of this text, which has another text in the other run's version.
                select here.record_id
                from moved here
                join moved there on there.record_id = here.record_id and there.document_id <> here.document_id
                where here.document_id = changed.document_id
                  and is_member(here.member, own.corpus_version)
                      and is_member(there.member, other.corpus_version)
                limit 1
            ) successor on member.document_id is null
            left join call_losses other_loss
                on other_loss.scoring_recipe_id = other_tool.scoring_recipe_id
                    and other_loss.document_id = changed.variant_id
               and other_loss.call_id = changed.call_id
               and other_loss.scoring_recipe_id = any (scoring_recipe_ids)  -- reads no other partition
            left join call_information placebo
                on placebo.placebo_recipe_id = other_tool.placebo_recipe_id
                    and placebo.document_id = changed.variant_id
               and placebo.call_id = changed.call_id
               and placebo.placebo_recipe_id = any (placebo_recipe_ids)
            left join release_choices choice
                on choice.release_id = made.release_id and choice.document_id = changed.document_id
                    and choice.call_id = changed.call_id
            left join lateral (
                select release_refusal(
                    changed.result, requires_following(other.parameters), changed.document_id,
                        changed.position_char) as reason
            ) refusal on compares_kept
            -- rows that were dropped have no facts
            where changed.call_text is null or changed.with_same_result = 1
        )
        select is_added, tool, document_id, call_id, position_char, call_text, result, gain, reason,
               case
                   when reason = 'text_changed' then 'record ' || record_id
                   when reason = 'result_changed' then
                       case when is_added then concat(coalesce(other_result, result_of_other, 'none'), ' -> ',
                           result)
                            else concat(result, ' -> ', coalesce(other_result, result_of_other, 'none')) end
                   when reason = 'threshold' then
                       case when is_added then concat(other_threshold, ' -> ', own_threshold)
                           else concat(own_threshold, ' -> ', other_threshold) end
                   when reason = 'better_call_at_position' then call_there || ' -> ' || result_there
                   when reason = 'above_max_examples' then max_examples
                   when reason = any ('{model_changed,prompt_changed,tool_changed,code_changed,choices_changed}') then recipe_detail
               end as detail,
               probability_with
        from judged;
end
$$;
comment on function release_changes_between is
    'The calls that only one of the releases of two runs holds: is_added for those of the later run. Where '
    'neither made a release, of the calls that they keep (calls_to_compare). Each has one reason: the '
    'first, in the order in which a run decides, for which the run without the call does not release it '
    '(docs/database.md has the list). Without an earlier run (null) it is first_run. Reads the partitions '
    'of the two runs alone.';

create or replace function run_comparison_between(later_run text, earlier_run text)
    returns table (
        change text, document_id text, position_char integer, tool text, call_text text, result text,
            gain double precision, call_id text,
        tool_before text, call_text_before text, result_before text, gain_before double precision,
            call_id_before text,
        reason text, detail text)
    language sql stable
as $$
    select case when bool_and(is_added) then 'new' when not bool_or(is_added) then 'gone'
        else 'changed' end as change,
           cast(document_id as text), position_char,
           max(tool) filter (where is_added) as tool,
           max(call_text) filter (where is_added) as call_text,
           max(result) filter (where is_added) as result,
           max(gain) filter (where is_added) as gain,
           max(cast(call_id as text)) filter (where is_added) as call_id,
           max(tool) filter (where not is_added) as tool_before,
           max(call_text) filter (where not is_added) as call_text_before,
           max(result) filter (where not is_added) as result_before,
           max(gain) filter (where not is_added) as gain_before,
           max(cast(call_id as text)) filter (where not is_added) as call_id_before,
           -- Of a changed place, one side may only say that the other's call is better there; then the other
           -- side says why.
           (array_agg(reason order by reason = 'better_call_at_position', is_added desc))[1] as reason,
           (array_agg(detail order by reason = 'better_call_at_position', is_added desc))[1] as detail
    from release_changes_between(later_run, earlier_run)
    group by document_id, position_char,
             case when position_char is null then call_id end  -- rows were dropped: nothing says the place
$$;
comment on function run_comparison_between is
    'The places of texts at which the releases of two runs differ, one row a place; columns as in the view '
    'run_comparison. Without an earlier run (null) every call is new.';
