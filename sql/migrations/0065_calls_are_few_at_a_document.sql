-- Calls are joined by document and call. Postgres multiplies the selectivities of the two, and knows of no join that a call belongs to one
-- document: it expected 5 rows where there were 6,400, and joined row by row for minutes. With n_distinct it takes the calls of a document
-- for what is distinct. `ensure_partition` (storage/database.py) says the same of each new partition.
do $$
declare
    part regclass;
begin
    for part in
        select class.oid::regclass
        from pg_class class
        where class.oid in ('candidate_calls'::regclass, 'call_losses'::regclass, 'placebo_losses'::regclass)
           or class.oid in (
               select inhrelid from pg_inherits
               where inhparent in ('candidate_calls'::regclass, 'call_losses'::regclass, 'placebo_losses'::regclass))
    loop
        execute format('alter table %s alter column call_id set (n_distinct = 4, n_distinct_inherited = 4)', part);
    end loop;
end
$$;

create function undecided_at(run text, tool_name text, threshold double precision)
    returns table (calls bigint, positions bigint)
    language plpgsql stable rows 1  -- in plpgsql a body may name a view that is made later
as $$
declare
    chosen record;
begin
    select t.sampling_recipe_id, t.scoring_recipe_id into chosen from run_tools t where t.run_id = run and t.tool = tool_name;
    return query
        select (select count(*)
                from call_losses loss
                join run_tool_documents member
                    on member.run_id = run and member.tool = tool_name and member.variant_id = loss.document_id
                where loss.scoring_recipe_id = chosen.scoring_recipe_id
                  and loss.reason = 'pruned_below' and loss.reduction_bound >= threshold),
               (select count(*)
                from pruned_positions pruned
                join run_tool_documents member
                    on member.run_id = run and member.tool = tool_name and member.variant_id = pruned.document_id
                where pruned.sampling_recipe_id = chosen.sampling_recipe_id and pruned.loss_without_call >= threshold);
end
$$;
comment on function undecided_at(text, text, double precision) is 'What a keep threshold below prune_below may keep beyond the calls that are known, by the stored bounds: calls whose losses were not all computed, and positions at which no call was sampled. (0, 0) from prune_below on.';

create or replace function kept_calls_at(run text, tool_name text, threshold double precision)
    returns table (
        document_id uuid, call_id uuid, text_before text, call_text text, result text, text_after text,
        loss_reduction double precision, releasable boolean)
    language plpgsql stable
as $$
declare
    chosen record;
    undecided record;
begin
    select t.prune_below, t.placebo_recipe_id, t.tau_information into chosen
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
                  hint = format('Start a run with prune_below at or below %s (0 computes every call).', threshold);
    end if;
    return query
        select s.document_id, s.call_id, s.text_before, s.call_text, s.result, s.text_after, s.loss_reduction,
               not s.input_only_after
        from scored_calls s
        where s.run_id = run and s.tool = tool_name and is_kept(null, s.loss_reduction, threshold)
          and (chosen.tau_information is null or s.information >= chosen.tau_information);
end
$$;
