-- The ledger and the filter decisions have a partition for each recipe, as calls and losses have: what no run needs is dropped with its files.

alter table stage_ledger rename to stage_ledger_before;
create table stage_ledger (like stage_ledger_before including all excluding indexes) partition by list (recipe_id);
comment on table stage_ledger is 'What is done: one row for each document that a stage has finished under a recipe, written in the same transaction as the stage''s own rows. One partition for each recipe, in which document_id and stage are the key.';

alter table filter_decisions rename to filter_decisions_before;
create table filter_decisions (like filter_decisions_before including all excluding indexes) partition by list (filter_recipe_id);
comment on table filter_decisions is 'The tools'' heuristics (Toolformer, appendix A): one row a paragraph, or one a document. One partition for each filter recipe, in which document_id and paragraph are the key. Writer: stages/filtering.py.';

-- Rows are never updated: those that are frozen when they are vacuumed first are not read again to be frozen.
do $$
declare
    recipe text;
    partition text;
    copied bigint;
    rows_copied bigint := 0;
    rows_before bigint;
begin
    -- 1. A partition for each recipe with rows, filled in the order of its key.
    recipe := (select min(recipe_id) from stage_ledger_before);
    while recipe is not null loop
        partition := 'stage_ledger_' || recipe;
        execute format('create table %I partition of stage_ledger for values in (%L) with (autovacuum_freeze_min_age = 0)', partition, recipe);
        execute format('insert into %I select * from stage_ledger_before where recipe_id = %L order by document_id, stage', partition, recipe);
        get diagnostics copied = row_count;
        rows_copied := rows_copied + copied;
        execute format('create unique index on %I (document_id, stage)', partition);
        recipe := (select min(recipe_id) from stage_ledger_before where recipe_id > recipe);
    end loop;
    recipe := (select min(filter_recipe_id) from filter_decisions_before);
    while recipe is not null loop
        partition := 'filter_decisions_' || recipe;
        execute format('create table %I partition of filter_decisions for values in (%L) with (autovacuum_freeze_min_age = 0)', partition, recipe);
        execute format('insert into %I select * from filter_decisions_before where filter_recipe_id = %L order by document_id, paragraph',
                       partition, recipe);
        get diagnostics copied = row_count;
        rows_copied := rows_copied + copied;
        execute format('create unique index on %I (document_id, paragraph)', partition);
        recipe := (select min(filter_recipe_id) from filter_decisions_before where filter_recipe_id > recipe);
    end loop;
    select (select count(*) from stage_ledger_before) + (select count(*) from filter_decisions_before) into rows_before;
    if rows_copied <> rows_before then
        raise exception 'expected % rows of stage_ledger and filter_decisions in partitions, found %', rows_before, rows_copied;
    end if;
    -- 2. A run that has started has an empty partition for each recipe of which no row is written yet.
    for recipe, partition in
        select distinct used.recipe_id, used.partition
        from run_tools rt
        cross join lateral (values
            (rt.filter_recipe_id, 'stage_ledger_' || rt.filter_recipe_id), (rt.sampling_recipe_id, 'stage_ledger_' || rt.sampling_recipe_id),
            (rt.execution_recipe_id, 'stage_ledger_' || rt.execution_recipe_id), (rt.scoring_recipe_id, 'stage_ledger_' || rt.scoring_recipe_id),
            (rt.placebo_recipe_id, 'stage_ledger_' || rt.placebo_recipe_id), (rt.filter_recipe_id, 'filter_decisions_' || rt.filter_recipe_id)
        ) used (recipe_id, partition)
        where used.recipe_id is not null
          and to_regclass(quote_ident(used.partition)) is null
          and not exists (select from recipes where recipes.recipe_id = used.recipe_id and dropped_at is not null)
        order by used.partition
    loop
        if starts_with(partition, 'stage_ledger_') then
            execute format('create table %I partition of stage_ledger for values in (%L) with (autovacuum_freeze_min_age = 0)', partition, recipe);
            execute format('create unique index on %I (document_id, stage)', partition);
        else
            execute format('create table %I partition of filter_decisions for values in (%L) with (autovacuum_freeze_min_age = 0)', partition, recipe);
            execute format('create unique index on %I (document_id, paragraph)', partition);
        end if;
    end loop;
    -- 3. The partitions that there are.
    for partition in
        select relation.relname
        from pg_inherits
        join pg_class relation on relation.oid = inhrelid
        where inhparent in (select to_regclass(parent)
                            from unnest(array['candidate_calls', 'pruned_positions', 'call_losses', 'placebo_losses']) parent)
          and relation.relkind = 'r'
    loop
        execute format('alter table %I set (autovacuum_freeze_min_age = 0)', partition);
    end loop;
end
$$;

-- The views and functions on them are made anew behind the migrations.
drop table stage_ledger_before cascade;
drop table filter_decisions_before cascade;
