-- The best calls of a tool without reading all of them: those of the recipe in the order of the index call_losses_kept, each looked up in the
-- run's corpus, until there are enough. In a query on kept_calls Postgres joins all calls with all documents first.

create function best_kept_calls(run text, tool_name text, how_many integer)
    returns table (
        document_id uuid, call_id uuid, text_before text, call_text text, result text, text_after text,
        loss_reduction double precision, releasable boolean)
    language plpgsql stable
as $$
declare
    chosen record;
begin
    select t.sampling_recipe_id, t.scoring_recipe_id, t.keep_threshold, t.reads_record,
           r.corpus_id, r.corpus_version, coalesce(r.ordinal_limit, 2147483647) as below_ordinal
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
            select loss.document_id, loss.call_id, loss.result, loss.loss_reduction
            from call_losses loss
            where loss.scoring_recipe_id = chosen.scoring_recipe_id
              and loss.reason is null
              and is_kept(null, loss.loss_reduction, chosen.keep_threshold)
              -- A subquery that returns a value is computed row by row; `exists` would become a join with the whole corpus.
              and (
                  select true
                  from documents document
                  join corpus_documents member
                      on member.corpus_id = chosen.corpus_id
                     and member.document_id = coalesce(document.variant_of, document.document_id)
                  where document.document_id = loss.document_id
                    and member.first_version <= chosen.corpus_version
                    and (member.left_version is null or member.left_version > chosen.corpus_version)
                    and member.ordinal < chosen.below_ordinal
                    and loss.document_id
                        = case when chosen.reads_record then coalesce(member.variant_id, member.document_id) else member.document_id end
                  limit 1
              )
            order by loss.loss_reduction desc, loss.call_id
            limit how_many
        )
        select coalesce(document.variant_of, document.document_id), best.call_id,
               substr(document.text, greatest(call.position_char - 120, 0) + 1, least(call.position_char, 120)),
               call.call_text, best.result, substr(document.text, call.position_char + 1, 120), best.loss_reduction,
               not call.input_only_after
        from best
        join candidate_calls call
            on call.sampling_recipe_id = chosen.sampling_recipe_id
           and call.document_id = best.document_id
           and call.call_id = best.call_id
        join documents document on document.document_id = best.document_id
        order by best.loss_reduction desc, best.call_id;
end
$$;
comment on function best_kept_calls(text, text, integer) is 'So many kept calls of one tool in one run, those that save most first: the same as the first of the view kept_calls by loss_reduction and call_id.';
